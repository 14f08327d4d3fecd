"""The connection between actors and learners, by distributed TensorFlow.

Actors use its client, learners its server.
Must not import `actor`, `learner` or `inference`: `server` calls inference through a
protocol.
"""
