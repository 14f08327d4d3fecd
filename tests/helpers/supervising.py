"""Real supervisors of small programs, for tests."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deadlines import Deadline
from processes import ROOT, wait

from launcher.supervise.json_files import read_json, write_json
from launcher.supervise.procfs import is_alive
from launcher.supervise.programs import command_of
from launcher.supervise.task import Task


def until(holds, seconds=10.0):
    """Wait until `holds()` is true, and return its value."""
    deadline = Deadline(seconds)
    while not (found := holds()):
        assert not deadline.is_over(), f"{holds} was not true within {seconds} s"
        time.sleep(0.02)
    return found


class Supervised:
    """A supervisor in a run's state folder."""

    def __init__(self, folder: Path, command: list[str], **changes):
        name = changes.get("name", "learners")
        self.folder, self.log = folder / name, folder / f"{name}.log"
        settings = {
            "name": name,
            "job": "learner",
            "host": "localhost",
            "command": command,
            "environment": {"PATH": os.environ["PATH"]},
            "workdir": str(folder),
            "folder": str(folder),
            "log": str(self.log),
            "log_max_mb": 1.0,
            "lease_secs": None,
            "rows": "",
            "restarts": 0,
            "stall_secs": 0.0,
            "grace_secs": 5.0,
        }
        # The program of the supervisor; a test's own begins with what it changes.
        own = changes.pop("program", None)
        self.folder.mkdir(exist_ok=True)
        task = self.folder / "task.json"
        write_json(task, Task(**settings | changes)._asdict())
        self._shown = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", own, task] if own else command_of("supervisor", str(task)),
            cwd=ROOT if own else None,
            stdin=subprocess.DEVNULL,
            stdout=self._shown,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def state(self):
        """The state that the supervisor recorded."""
        return read_json(self.folder / "state.json")

    def shown(self):
        """Return what its window shows."""
        self._shown.seek(0)
        return self._shown.read()

    def until(self, state, seconds=10.0):
        """Wait for a state, and return the complete record."""
        until(lambda: self.state.get("state") == state, seconds)
        return self.state

    def until_it_says(self, line):
        """Wait for a line of its process."""
        until(lambda: self.log.exists() and line in self.log.read_text().splitlines())

    def wait(self, seconds=15.0):
        """Return its exit code after it has exited."""
        return wait(self.process, seconds)

    def end(self):
        """Kill it and all that it started."""
        recorded = self.state.get("process")
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self._shown.close()
        if is_alive(recorded):
            with contextlib.suppress(OSError):
                os.killpg(recorded[0], 9)
