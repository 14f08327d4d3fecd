"""What travels between processes: unrolls, steps and parameters, as tensors and as bytes.

Actors write it, `transport` carries it, learners read it.
Must import nothing above `environments`: it knows of no algorithm, connection or loop.
"""
