"""A run's folder with a checkpoint of an untrained network, as a learner writes it."""

import dataclasses

import numpy as np
from rows import read_rows

from impala_mm.algorithms import agent
from impala_mm.config.settings import Config
from impala_mm.records import checkpoint, run_checkpoints


def save(logdir, updates=1, frames=1000.0, sure=False, **settings):
    """Write a checkpoint, and return its folder.

    With `sure` its weights are large, so that the observation determines the action.
    """
    config = Config.of_algorithm(settings.get("algorithm", Config.algorithm))(**settings)
    made = agent.make_agent(config, number=0)
    if sure:
        draws = np.random.default_rng(7)
        for variable in made.algorithm.variables.trained:
            inputs = np.prod(variable.shape[:-1]) if variable.shape.rank > 1 else 400  # for biases
            variable.assign(draws.normal(0, 2 / np.sqrt(inputs), variable.shape))
    for variable in made.algorithm.variables.weights or ():  # moments, which no run leaves at 0
        of_bytes = "image" in variable.name  # a larger mean would hide what an image shows
        variable.assign(variable + (100 if of_bytes else 70_000))
    logdir.mkdir(parents=True, exist_ok=True)
    checkpoints = run_checkpoints.Checkpoints(logdir, made.algorithm.variables, keep=100)
    checkpoints.snapshot()
    about = checkpoint.CheckpointInfo(1, dataclasses.asdict(config), made.made_of, {})
    return checkpoints.save(about._replace(updates=updates, frames=frames))


def evaluations(logdir):
    """Return the records of evaluations.jsonl."""
    return read_rows(logdir, "evaluations.jsonl")
