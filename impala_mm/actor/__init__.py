"""An actor: steps a batch of environments and sends their unrolls to a learner.

Read `actor` first: it is the loop. `stepper` steps the environments, `acting` chooses the actions,
`learner_link` sends and downloads; `stepping_actor` has the loop's groups for inference at the
learner.

The actor's job runs it; tests and benchmarks use its `UnrollPlayer`.
Must not import `learner`: both use `transport` and `data` instead.
"""
