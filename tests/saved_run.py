"""A run's folder with a checkpoint of an untrained network, as a learner writes it."""

import dataclasses
import json

from impala_mm import agreement, checkpoint
from impala_mm.config import Config


def save(logdir, updates=1, frames=1000.0, **settings):
    """The checkpoint's folder."""
    config = Config(**settings)
    made = agreement.make(config, number=0)
    checkpoints = checkpoint.Checkpoints(logdir, made.algorithm.variables, keep=100)
    checkpoints.snapshot()
    about = checkpoint.About(1, dataclasses.asdict(config), made.made_of, {})
    return checkpoints.save(about._replace(updates=updates, frames=frames))


def evaluations(logdir):
    """What evaluations.jsonl holds."""
    return [json.loads(line) for line in (logdir / "evaluations.jsonl").read_text().splitlines()]
