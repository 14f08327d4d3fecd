"""Who is told of a run, besides its own folder: the terminal, --on_event's command, --track."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from impala_mm import processes, tracking
from impala_mm.config import Config
from impala_mm.events import Events
from impala_mm.run_folder import RunFolder


class Told(NamedTuple):
    """All of them."""

    say: processes.Sayer
    events: Events
    tracked: tracking.Tracking | None


def told(config: Config, folder: RunFolder | None, say: processes.Sayer) -> Told:
    """By a learner; without a folder, which rank 0 has, the terminal alone."""
    if not folder:
        return Told(say, Events("", Path(), say), None)
    events = Events(config.on_event, folder.path, say)
    tracked = tracking.Tracking(folder.path, dataclasses.asdict(config), say)
    return Told(say, events, tracked if config.track else None)
