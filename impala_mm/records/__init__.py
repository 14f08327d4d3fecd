"""The records of a run: its folder, checkpoints, metrics, and the user's hooks.

Learners write them; evaluation, resumed runs and the plots of `sandbox/` read them.
The package must import nothing above `data`, so that records can be read without a learner.
"""
