"""A learner: takes batches of unrolls, trains on them and publishes the parameters.

The learner's job runs it.
Must not import `actor`: the two meet in `transport` and `data` alone.
"""
