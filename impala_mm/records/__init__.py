"""What a run leaves behind: its folder, checkpoints, metrics, and the user's hooks.

Learners write it; evaluation, resume and the plots of `sandbox/` read it.
Must import nothing above `data`: it knows of no learner.
"""
