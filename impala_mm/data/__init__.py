"""The data that processes exchange: unrolls, steps and parameters, as tensors and as bytes.

Actors write it, `transport` sends it, and learners read it. This package must import nothing above
`environments`: it does not depend on algorithms, connections or training loops.
"""
