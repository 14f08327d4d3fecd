"""Evaluation: whole games with a trained policy, their statistics, tables and videos.

`impala_mm.evaluate` and the jobs `evaluate` and `evaluator` call it.
Must not import `actor`, `learner` or `transport`.
"""
