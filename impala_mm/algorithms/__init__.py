"""Algorithms: how to act and how to learn, behind one interface.

Actors call `act`, learners call `update`, evaluation calls `judge`.
Must not import `transport`, `actor` or `learner`: an algorithm is not told where batches come from.
"""
