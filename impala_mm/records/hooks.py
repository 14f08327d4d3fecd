"""What a user's own command is told of a run: --on_event=COMMAND, called by rank 0.

    IMPALA_MM_EVENT=save|stall|nan|end  IMPALA_MM_LOGDIR=...  IMPALA_MM_MESSAGE="..."  COMMAND

The run never waits for it and never fails of it; what it prints is in LOGDIR/on_event.log.
"""

import math
import os
import subprocess
from pathlib import Path

from impala_mm.runtime.log import Say

_MAX_RUNNING = 8  # that run at once: one that hangs must not pile up


class EventHook:
    """Of one run; without a command nothing happens."""

    def __init__(self, command: str, logdir: Path, say: Say):
        self._command, self._logdir, self._say = command, logdir, say
        self._running: list[subprocess.Popen] = []

    def call(self, event: str, message: str) -> None:
        """Calls the command, in a shell and a session of its own."""
        if not self._command:
            return
        self._running = [process for process in self._running if process.poll() is None]
        if len(self._running) >= _MAX_RUNNING:
            self._say(f"--on_event: {_MAX_RUNNING} calls have not ended yet; {event} is not told")
            return
        told = {
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
                        env=os.environ | told,
                        start_new_session=True,  # it may outlive us, and our Ctrl-C is not its
                    )
                )
        except OSError as error:
            self._say(f"--on_event could not be called: {error}")


class StallDetector:
    """Whether updates stopped to come."""

    def __init__(self, seconds: float):
        """`seconds` without one are a stall."""
        self._seconds = seconds
        self._updates: int | None = None
        self._since = math.inf

    def has_begun(self, updates: int, now: float) -> bool:
        """Once for each stall; asked several times a second."""
        if updates != self._updates:
            self._updates, self._since = updates, now
        if now - self._since < self._seconds:
            return False
        self._since = math.inf  # told; until they come again
        return True
