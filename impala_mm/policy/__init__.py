"""A trained policy: loaded from a checkpoint, called from Python, saved as a SavedModel.

`impala_mm.load_policy`, evaluation and export call it.
The package must not import `actor`, `learner` or `transport`, since a policy acts without them.
"""
