"""The state of a process, which its supervisor alone writes to `state.json`, and how it is read.

On the frontend's machine the states of processes on other hosts are copies of the same form.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from launcher.supervise import procfs
from launcher.supervise.json_files import from_json, read_json, write_json
from launcher.supervise.liveness import HeartbeatMonitor
from launcher.supervise.process_output import ProcessOutput
from launcher.supervise.task import FINAL_STATES, Task

_STATE_SECONDS = 2.0  # seconds between two writes of an unchanged state
_ALL_FAILED_SECONDS = 5.0  # seconds after the last failure: a learner that knows why ends by itself


class Failure(NamedTuple):
    """The last failure of a process."""

    time: float = 0.0  # in seconds since 1970
    code: int = 1
    why: str = "it failed"
    lines: tuple[str, ...] = ()  # the last ones that it printed
    next: str = ""  # what follows


class State(NamedTuple):
    """The state of a process."""

    name: str
    job: str
    host: str
    state: str  # a supervisor's, or as `Run.states` has it, too
    log: str = ""
    last: str = ""  # the last line that it printed
    place: str = ""  # the host's id, for the machine of the frontend alone
    # Whether it was itself requested to stop, on its host or here, as `Run.states` has it.
    is_to_stop: bool = False
    supervisor: procfs.Process | None = None
    process: procfs.Process | None = None
    restarts: int = 0
    code: int | None = None
    failure: Failure | None = None
    learner_hosts: tuple[str, ...] = ()  # addresses of all learners by rank, once they are known
    awaits: tuple[str, ...] = ()  # hosts whose mpirun, or its daemon, it waits for
    cpu: float | None = None  # percent of a core
    memory: float | None = None  # MiB
    frames_per_second: float | None = None
    silent: float | None = None  # seconds since its heartbeat
    since: float | None = None  # when it was started, by the clock of its host as it was at `time`
    time: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended for good, or its supervisor is lost."""
        return self.state in (*FINAL_STATES, "lost")

    def to_json(self) -> dict[str, Any]:
        """Return the content of its file."""
        return self._asdict() | {"failure": self.failure and self.failure._asdict()}


def parse_state(content: dict[str, Any]) -> State | None:
    """Return the state with this content of a file; None if it is damaged."""
    state = from_json(State, content)
    if state and state.state in FINAL_STATES and state.code is None:
        return state._replace(code=int(state.state == "failed"))
    return state


def read_state(folder: Path) -> State | None:
    """Return the state of the process with this folder; None if it has none, or a damaged one."""
    return parse_state(read_json(folder / "state.json"))


class StateWriter:
    """The file of one process's state."""

    def __init__(self, task: Task, output: ProcessOutput, heartbeat: HeartbeatMonitor):
        self._output, self._heartbeat, self._usage = output, heartbeat, procfs.Usage()
        self._path = Path(task.folder) / task.name / "state.json"
        self._written = 0.0
        self._began: float | None = None  # time.monotonic() when the process was started
        supervisor = procfs.identify(os.getpid())
        self.state = State(
            task.name, task.job, task.host, "starting", task.log, supervisor=supervisor
        )

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
                awaits=tuple(self._heartbeat.awaited()),
            )

    def write_start(self, process: procfs.Process) -> None:
        """Write that this process was started now."""
        self._began = time.monotonic()
        self.write(state="running", process=process)

    def write(self, **news: Any) -> None:
        """Write the state with these changes."""
        last = self._output.lines[-1][:300] if self._output.lines else ""
        now, self._written = time.time(), time.monotonic()
        self.state = self.state._replace(**news, last=last, time=now)
        if self._began is not None:  # by the clock of now, which may have been set since
            self.state = self.state._replace(since=now - (self._written - self._began))
        with contextlib.suppress(OSError):  # a full disk costs this update, not the process
            write_json(self._path, self.state.to_json())


class ActorWatch:
    """A watch over the actors of one run; both programs that follow a run have one."""

    def __init__(self) -> None:
        self._all_failed_at: float | None = None  # time.monotonic()

    def have_all_failed(self, states: Iterable[State]) -> bool:
        """Return whether all actors among these processes failed for good some seconds ago.

        Those that `--apply` has removed are "stopped" and do not count.
        """
        actors = {each.state for each in states if each.job == "actor"}
        if actors - {"stopped", "ended"} != {"failed"}:
            self._all_failed_at = None
            return False
        self._all_failed_at = self._all_failed_at or time.monotonic()
        return time.monotonic() - self._all_failed_at > _ALL_FAILED_SECONDS
