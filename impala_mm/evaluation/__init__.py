"""Evaluation of a trained policy: complete games, their statistics, tables and videos.

`impala_mm.evaluate`, the jobs `evaluate`, `evaluator` and `record`, and `teachers` call it.
The package must not import `actor`, `learner` or `transport`.
"""
