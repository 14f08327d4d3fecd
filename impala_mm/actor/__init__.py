"""An actor: plays a batch of environments and sends the unrolls to its learner.

The actor's job runs it; tests and benchmarks play with its `Player`.
Must not import `learner`: the two meet in `transport` and `data` alone.
"""
