"""The state of a process, which its supervisor writes to `state.json` for frontends."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from launcher.node import procfs
from launcher.node.liveness import HeartbeatMonitor
from launcher.node.process_output import ProcessOutput
from launcher.node.task import Task, write_json

_STATE_SECONDS = 2.0  # seconds between two writes of an unchanged state


class ProcessState:
    """The state of one process, by the names that `state.json` has."""

    def __init__(self, task: Task, output: ProcessOutput, heartbeat: HeartbeatMonitor):
        self._output, self._heartbeat, self._usage = output, heartbeat, procfs.Usage()
        self._path = Path(task.folder) / task.name / "state.json"
        self._written = 0.0
        self.fields: dict[str, Any] = {
            "name": task.name,
            "job": task.job,
            "host": task.host,
            "log": task.log,
            "state": "starting",
            "supervisor": [os.getpid(), procfs.start_time(os.getpid())],
            "process": None,
            "restarts": 0,
            "failure": None,
            "learner_hosts": [],  # addresses of all learners by rank, once they are known
            "awaits": [],  # other learners' hosts whose supervisor does not answer
        }

    def write_if_due(self) -> None:
        """Write the state with new measurements, if the last one is too old."""
        if time.monotonic() - self._written > _STATE_SECONDS:
            cpu, memory = self._usage.measure()
            rate = self._heartbeat.frames_per_second()
            silent = round(self._heartbeat.longest_silence()[0], 1)
            self.write(cpu=round(cpu), memory=round(memory), frames_per_second=rate, silent=silent)

    def write(self, **news: Any) -> None:
        """Write the state with these changes."""
        last = self._output.lines[-1][:300] if self._output.lines else ""
        self.fields |= news | {"last": last, "time": time.time()}
        self._written = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk costs this update, not the process
            write_json(self._path, self.fields)
