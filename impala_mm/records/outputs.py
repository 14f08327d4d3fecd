"""Who is told of a run, besides its own folder: the terminal, --on_event's command, --track."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from impala_mm.config.settings import Config
from impala_mm.records import wandb_tracking
from impala_mm.records.hooks import Events
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import log


class Told(NamedTuple):
    """All of them."""

    say: log.Sayer
    events: Events
    tracked: wandb_tracking.Tracking | None


def told(config: Config, folder: RunFolder | None, say: log.Sayer) -> Told:
    """By a learner; without a folder, which rank 0 has, the terminal alone."""
    if not folder:
        return Told(say, Events("", Path(), say), None)
    events = Events(config.on_event, folder.path, say)
    tracked = wandb_tracking.Tracking(folder.path, dataclasses.asdict(config), say)
    return Told(say, events, tracked if config.track else None)
