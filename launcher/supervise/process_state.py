"""The state of a process, which its supervisor writes to `state.json` for frontends."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from launcher.supervise import procfs
from launcher.supervise.json_types import fields_fit
from launcher.supervise.liveness import HeartbeatMonitor
from launcher.supervise.process_output import ProcessOutput
from launcher.supervise.task import FINAL_STATES, Task, read_json, write_json

_STATE_SECONDS = 2.0  # seconds between two writes of an unchanged state
_NEEDED = ("name", "job", "host", "state")
_KINDS: dict[str, Any] = {
    **dict.fromkeys((*_NEEDED, "log", "last", "place"), str),
    **dict.fromkeys(("supervisor", "process"), list[int] | None),
    **dict.fromkeys(("cpu", "memory", "frames_per_second", "silent"), float | None),
    **dict.fromkeys(("since", "time"), float | None),
    **dict.fromkeys(("learner_hosts", "awaits"), list[str]),
    "restarts": int,
    "code": int | None,
    "failure": dict[str, Any] | None,
}
_OPTIONAL = {"supervisor": None, "process": None, "restarts": 0, "failure": None, "log": ""}
_FAILURE_KINDS = {"time": float, "code": int, "why": str, "lines": list[str], "next": str}
_FAILURE = {"time": 0.0, "code": 1, "why": "it failed", "lines": [], "next": ""}


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of the process with this folder; empty if it has none, or a damaged one."""
    return parse_state(read_json(folder / "state.json"))


def parse_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with this content, with all fields; empty if it is damaged."""
    if not is_state(state):
        return {}
    state = _OPTIONAL | state
    if state["state"] in FINAL_STATES and state.get("code") is None:
        state["code"] = int(state["state"] == "failed")
    if state["failure"]:
        state["failure"] = _FAILURE | state["failure"]
    return state


def is_state(state: dict[str, Any]) -> bool:
    """Return whether the fields of a state have the types that frontends rely on."""
    recorded = [state.get(name) for name in ("supervisor", "process")]
    return (
        all(name in state for name in _NEEDED)
        and fields_fit(state, _KINDS)
        and all(each is None or len(each) == 2 for each in recorded)
        and fields_fit(state.get("failure") or {}, _FAILURE_KINDS)
    )


class ProcessState:
    """The state of one process, by the names that `state.json` has."""

    def __init__(self, task: Task, output: ProcessOutput, heartbeat: HeartbeatMonitor):
        self._output, self._heartbeat, self._usage = output, heartbeat, procfs.Usage()
        self._path = Path(task.folder) / task.name / "state.json"
        self._written = 0.0
        self._began: float | None = None  # time.monotonic() when the process was started
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
            "awaits": [],  # hosts whose mpirun, or its daemon, it waits for
        }

    def write_if_due(self) -> None:
        """Write the state with new measurements, if the last one is too old."""
        if time.monotonic() - self._written > _STATE_SECONDS:
            cpu, memory = self._usage.measure()
            rate = self._heartbeat.frames_per_second()
            silent = round(self._heartbeat.longest_silence()[0], 1)
            self.write(
                cpu=round(cpu),
                memory=round(memory),
                frames_per_second=rate,
                silent=silent,
                awaits=self._heartbeat.awaited(),
            )

    def write_start(self, process: list[int]) -> None:
        """Write that this process was started now."""
        self._began = time.monotonic()
        self.write(state="running", process=process)

    def write(self, **news: Any) -> None:
        """Write the state with these changes."""
        last = self._output.lines[-1][:300] if self._output.lines else ""
        self.fields |= news | {"last": last, "time": time.time()}
        self._written = time.monotonic()
        if self._began is not None:  # by the clock of now, which may have been set since
            self.fields["since"] = self.fields["time"] - (self._written - self._began)
        with contextlib.suppress(OSError):  # a full disk costs this update, not the process
            write_json(self._path, self.fields)
