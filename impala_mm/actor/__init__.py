"""An actor: steps a batch of environments and sends their unrolls to a learner.

The actor's job runs it; tests and benchmarks use its `Player`.
Must not import `learner`: both use `transport` and `data` instead.
"""
