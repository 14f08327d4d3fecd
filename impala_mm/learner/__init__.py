"""A learner, which takes batches of unrolls, trains on them and publishes the parameters.

Read `learner` first: it is the loop. `sources` says where its batches come from, `train_step` what
an update is, `monitor` what is done meanwhile, `setup` how all of it is made.

`jobs.learner` runs it.
The package must not import `actor`: the two share `transport` and `data` alone.
"""
