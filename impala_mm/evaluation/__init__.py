"""Evaluation of a trained policy: complete games, their statistics, tables and videos.

`impala_mm.evaluate` and the jobs `evaluate` and `evaluator` call it.
The package must not import `actor`, `learner` or `transport`.
"""
