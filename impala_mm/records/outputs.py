"""The outputs of a run besides its folder: the terminal, the command of --on_event, and --track."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from impala_mm.config.settings import Config
from impala_mm.records import tracking
from impala_mm.records.hooks import EventHook
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import log


class RunOutputs(NamedTuple):
    """The outputs of one learner process."""

    say: log.ProcessLogger
    event_hook: EventHook
    tracked: tracking.Tracking | None

    def move(self, logdir: Path) -> None:
        """Write what goes to the run's folder to another one from now on."""
        self.event_hook.move(logdir)
        if self.say.log:
            self.say.log.move(logdir)


def make_outputs(config: Config, folder: RunFolder | None, say: log.ProcessLogger) -> RunOutputs:
    """Return a learner's outputs; without a folder, which only rank 0 has, just the terminal."""
    if not folder:
        return RunOutputs(say, EventHook("", Path(), say), None)
    events = EventHook(config.on_event, folder.path, say)
    if not config.track:
        return RunOutputs(say, events, None)
    tags = [tag.strip() for tag in config.track_tags.split(",") if tag.strip()]
    run = tracking.TrackedRun(folder.path, dataclasses.asdict(config), tags)
    tracker = tracking.make_tracker(config.track)
    return RunOutputs(say, events, tracking.Tracking(config.track, tracker, run, say))
