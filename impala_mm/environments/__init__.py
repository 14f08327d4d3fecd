"""Environments: finding a level by its name, and stepping many copies of it together.

Actors, evaluation and inference step environments; learners read their specs. This package must
import nothing above `runtime`: an environment does not depend on networks, unrolls or learners.
"""
