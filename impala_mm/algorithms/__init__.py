"""Algorithms: choosing actions and learning, behind one interface.

Actors call `act`, learners call `update`, and evaluation calls `judge`. This package must not
import `transport`, `actor` or `learner`: an algorithm does not know where its batches come from.
"""
