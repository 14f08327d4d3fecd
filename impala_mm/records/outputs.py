"""Who is told of a run, besides its own folder: the terminal, --on_event's command, --track."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from impala_mm.config.settings import Config
from impala_mm.records import wandb_tracking
from impala_mm.records.hooks import EventHook
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import log


class RunOutputs(NamedTuple):
    """All of them."""

    say: log.ProcessLogger
    event_hook: EventHook
    tracked: wandb_tracking.WandbTracking | None


def make_outputs(config: Config, folder: RunFolder | None, say: log.ProcessLogger) -> RunOutputs:
    """By a learner; without a folder, which rank 0 has, the terminal alone."""
    if not folder:
        return RunOutputs(say, EventHook("", Path(), say), None)
    events = EventHook(config.on_event, folder.path, say)
    tracked = wandb_tracking.WandbTracking(folder.path, dataclasses.asdict(config), say)
    return RunOutputs(say, events, tracked if config.track else None)
