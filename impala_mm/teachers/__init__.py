"""Teachers: the trained policies, functions and SavedModels that a student learns from.

A learner's process calls `load`, `scores` and `collect`; `algorithms.features.teacher` makes a loss
of what teachers answer. The package must not import `learner`, `actor` or `transport`: it knows
entries and policies, and nothing of how a run moves them.
"""
