"""Inference at the learner: actions for actors that only step environments.

A learner creates `BatchedInference`, and `transport`'s server calls it.
Must not import `actor` or `learner`.
"""
