"""A learner, which takes batches of unrolls, trains on them and publishes the parameters.

`jobs.learner` runs it.
The package must not import `actor`: the two share `transport` and `data` alone.
"""
