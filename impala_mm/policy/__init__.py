"""A trained policy: loaded from a checkpoint, called from Python, saved as a SavedModel.

`impala_mm.load_policy`, evaluation and export call it.
Must not import `actor`, `learner` or `transport`: a policy plays without any of them.
"""
