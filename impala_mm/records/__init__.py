"""The records of a run: its folder, checkpoints, metrics, and the user's hooks.

Learners write them; evaluation, resume and the plots of `sandbox/` read them.
The package must import nothing above `data`, so that records can be read without a learner.
"""
