"""The outputs of a run besides its folder: terminal, command of --on_event, --track, --mirror.

    IMPALA_MM_EVENT=save|stall|nan|end  IMPALA_MM_LOGDIR=...  IMPALA_MM_MESSAGE="..."  COMMAND

Rank 0 calls the user's own command for events of a run. The run does not wait for it, and a command
that fails does not end the run. Its output is appended to LOGDIR/on_event.log.
"""

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from impala_mm.config.settings import Config
from impala_mm.records import tracking
from impala_mm.records.mirror import Mirror
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime.log import BoundedLog, ProcessLogger, Say

_MAX_RUNNING = 8  # calls at once, so that commands that hang do not accumulate


class EventHook:
    """The event command of one run; without a command, calls do nothing."""

    def __init__(self, command: str, logdir: Path, say: Say):
        self._command, self._logdir, self._say = command, logdir, say
        self._running: list[subprocess.Popen] = []

    def move(self, logdir: Path) -> None:
        """Write the command's output to another folder from now on."""
        self._logdir = logdir

    def call(self, event: str, message: str) -> None:
        """Call the command in a shell, in a session of its own."""
        if not self._command:
            return
        self._running = [process for process in self._running if process.poll() is None]
        if len(self._running) >= _MAX_RUNNING:
            self._say(
                f"--on_event: {_MAX_RUNNING} calls have not ended yet; {event} is not reported"
            )
            return
        variables = {
            "IMPALA_MM_EVENT": event,
            "IMPALA_MM_LOGDIR": str(self._logdir.resolve()),
            "IMPALA_MM_MESSAGE": message,
        }
        try:
            with (self._logdir / "on_event.log").open("ab") as log:
                self._running.append(
                    subprocess.Popen(
                        self._command,
                        shell=True,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=os.environ | variables,
                        start_new_session=True,  # it receives no Ctrl-C, and may outlive the run
                    )
                )
        except OSError as error:
            self._say(f"--on_event could not be called: {error}")


class RunOutputs(NamedTuple):
    """The outputs of one learner process."""

    say: ProcessLogger
    event_hook: EventHook
    tracked: tracking.Tracking | None
    mirror: Mirror | None = None

    def move(self, logdir: Path) -> None:
        """Write what goes to the run's folder to another one from now on."""
        self.event_hook.move(logdir)
        if self.say.log:
            self.say.log.move(logdir)

    def end(self) -> None:
        """Wait for what has to be sent to others, for a while."""
        if self.tracked:
            self.tracked.end()
        if self.mirror:
            self.mirror.end()


def make_outputs(config: Config, folder: RunFolder | None, say: ProcessLogger) -> RunOutputs:
    """Return a learner's outputs; without a folder, which only rank 0 has, just the terminal.

    A run that is in the mirror of --mirror is downloaded to the folder first.
    """
    if not folder:
        return RunOutputs(say, EventHook("", Path(), say), None)
    mirror = Mirror(config.mirror, folder.path, say) if config.mirror else None
    if mirror:
        mirror.begin()
    say.log = BoundedLog(folder.path / "learner.log", config.log_max_mb)
    tracked = None
    if config.track:
        tags = [tag.strip() for tag in config.track_tags.split(",") if tag.strip()]
        run = tracking.TrackedRun(folder.path, dataclasses.asdict(config), tags)
        tracker = tracking.make_tracker(config.track)
        tracked = tracking.Tracking(config.track, tracker, run, say)
    return RunOutputs(say, EventHook(config.on_event, folder.path, say), tracked, mirror)
