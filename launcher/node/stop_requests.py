"""Requests to stop a process: by a file, by signals, or by the end of processes it belongs to."""

import contextlib
import time
from pathlib import Path

from launcher.node import procfs
from launcher.node.lease import Lease
from launcher.node.liveness import HeartbeatMonitor
from launcher.node.process_state import read_state
from launcher.node.task import FINAL_STATES, Task, is_gone

_LEADER_SECONDS = 60.0  # seconds that a process waits for its leader to be started


class StopRequests:
    """All requests to stop one process, which its supervisor passes on."""

    def __init__(self, task: Task, heartbeat: HeartbeatMonitor):
        self._task, self._heartbeat, self._run_folder = task, heartbeat, Path(task.folder)
        self._process_folder = self._run_folder / task.name
        self._lease = Lease(self._run_folder / "news", task.lease_secs or 0.0)
        self._created = time.monotonic()
        self.signals: list[int] = []  # those that the supervisor received
        self.passed_on = ""  # the request that the supervisor passed on: "save" or "now"

    def newest(self) -> str:
        """Return the stop request so far: "save", "now", or "" if there is none.

        A file requests it, a signal, or the end of the leader or of the parent.
        """
        requests = [
            _read_text(self._process_folder / "stop"),
            _read_text(self._run_folder / "stop"),
        ]
        if self._task.leader and requests[1] == "save":
            requests[1] = ""  # the learners save first; then this process ends because they ended
        elif requests[1] == "ended":
            requests[1] = "save"
        if self.signals:
            requests.append("save" if len(self.signals) == 1 else "now")
        if "now" in requests or self.passed_on == "now" or self.has_parent_ended():
            return "now"
        has_ended = "save" in requests or self._has_leader_ended()
        # Without its folder no request could reach this supervisor any more.
        return "save" if has_ended or is_gone(self._process_folder) else self.passed_on

    def has_parent_ended(self) -> bool:
        """Return whether the process for which this one was started has ended."""
        parent = self._task.parent
        return parent is not None and not procfs.is_alive(parent)

    def _has_leader_ended(self) -> bool:
        if not self._task.leader:
            return False
        if self._task.lease_secs is not None:
            return self._lease.has_expired(self._heartbeat.frames())
        leader = read_state(self._run_folder / self._task.leader)
        if not leader:  # it has not been started yet, or never will be
            is_late = time.monotonic() - self._created > _LEADER_SECONDS
            return is_late and is_gone(self._run_folder / self._task.leader / "state.json")
        return leader["state"] in FINAL_STATES or not procfs.is_alive(leader["supervisor"])


def _read_text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
