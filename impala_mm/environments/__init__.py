"""Environments: a level by its name, and batches of its copies that step together.

Actors, evaluation and inference step them; learners read their specs.
Must import nothing above `runtime`: an environment knows of no network, unroll or learner.
"""
