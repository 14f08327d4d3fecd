"""The connection between actors and learners, by distributed TensorFlow.

Actors hold its client, learners its server.
Must not import `actor`, `learner` or `inference`: `endpoints` has protocols of these.
"""
