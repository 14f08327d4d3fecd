"""Runs of an agent that nobody trained: a checkpoint of large random weights, for who reads one."""

import dataclasses
from pathlib import Path

import numpy as np

from impala_mm import agreement
from impala_mm.checkpoint import About, Checkpoints
from impala_mm.config import Config


def make_run(folder: Path, **settings: object) -> Path:
    """A run's folder; its agent is sure of itself, so that wrong inputs change what it does."""
    config = Config(**settings)
    made = agreement.make(config, number=0)
    draws = np.random.default_rng(7)
    for variable in made.algorithm.variables.trained:
        inputs = np.prod(variable.shape[:-1]) if variable.shape.rank > 1 else 400  # few for biases
        spread = 2 / np.sqrt(inputs)
        variable.assign(draws.normal(0, spread, variable.shape))
    about = About(
        learners=1,
        settings=dataclasses.asdict(config),
        made_of=made.made_of,
        versions={"tensorflow-cpu": "2.21.0"},
        updates=12,
        frames=3456.0,
    )
    checkpoints = Checkpoints(folder, made.algorithm.variables, 3)
    checkpoints.snapshot()
    checkpoints.save(about)
    return folder
