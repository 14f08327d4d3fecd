"""The runs of this user on this machine, each known by its name.

On the machine of the frontend all of a run is known; on another host its own processes are, in
`hosts/HOSTNAME/runs` instead.

    ~/.local/state/impala_mm/runs/NAME/      ($XDG_STATE_HOME, where it is set); mode 0700
        run.json     what was started (`Record`); mode 0600
        token        the secret that its actors show to its learners; mode 0600
        ...          what its supervisors write and read (`task`); those of processes elsewhere
                     are copies, which a frontend that is connected to their hosts keeps
        seen/PLACE   updated while a frontend is connected to that host; says why, if it is not

Whoever asks after a run reads this and nothing else, from any terminal: no CSV is needed.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.node import procfs
from launcher.node.task import FINAL_STATES, HEARTBEAT, LEARNERS, read_json, write_json

_TASK_SECONDS = 60.0  # within which a supervisor takes its task
_CONTACT_SECONDS = 15.0  # without any news of a host


class InvalidRunName(Exception):
    """Says what a name must be."""


class RunInUse(Exception):
    """A run of this name goes on; says what to do."""


class UnreadableRecord(Exception):
    """What is kept of a run cannot be read; says what to do."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What was started."""

    name: str
    id: str  # of this start of it
    time: float
    boot: str  # of the machine: after another one nothing of the run is left
    logdir: str
    socket: str  # of the tmux server that has its session; empty where there is none
    # Of each: name, job, host, place (its host's id), kind (what makes two rows alike), log.
    processes: list[dict[str, Any]]
    flags: dict[str, str]  # of every process, for more of them
    learners: list[str]  # their command
    next_actor: int  # the number of the next; one that was used is never used again
    shared: bool = False  # that folder is the learners' own, wherever they are
    # By host id: how a host is reached, without any password.
    targets: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    learner_places: list[str] = dataclasses.field(default_factory=list)  # the first learner's first
    pythons: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # by host id
    csvs: list[str] = dataclasses.field(default_factory=list)  # of its rows, the newest first
    started_from: str = ""  # the machine of its frontend

    def host_id_of(self, name: str) -> str:
        """Returns where a process runs; "" where it is none of this run's."""
        return next((p.get("place", "") for p in self.processes if p["name"] == name), "")


class Run:
    """A run by its name, whether there is one or not: its record, states, requests to stop."""

    def __init__(self, name: str, folder: Path | None = None):
        """`folder`: of all runs, if it is not this user's own."""
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise InvalidRunName(f"{name!r} is no name: letters, digits, - and _ make one")
        self.name = name
        self.folder = (folder or runs_folder()) / name

    @property
    def record(self) -> Record | None:
        """None where there is no such run. Raises UnreadableRecord."""
        path = self.folder / "run.json"
        if not path.exists():
            return None
        try:
            return Record(**read_json(path))
        except TypeError:
            states = [read_json(path) for path in self.folder.glob("*/state.json")]
            recorded = [state.get(name) for state in states for name in ("supervisor", "process")]
            if not any(map(procfs.is_alive, recorded)):  # nothing of it is left
                return None
            raise UnreadableRecord(
                f"{path} cannot be read, or is of another version of this program: end what it "
                f"started (tmux kill-session -t {self.name}), and remove {self.folder}"
            ) from None

    def write_record(self, record: Record) -> None:
        """Tells everybody."""
        write_json(self.folder / "run.json", dataclasses.asdict(record))

    def states(self) -> dict[str, dict[str, Any]]:
        """Of each process, by name, in the order of the record; `lost`: its supervisor is gone."""
        record = self.record
        if record is None:
            return {}
        rebooted = record.boot != boot_id()
        return {p["name"]: self._process_state(p, rebooted) for p in record.processes}

    def _process_state(self, process: dict[str, Any], rebooted: bool) -> dict[str, Any]:
        folder = self.folder / process["name"]
        state = read_json(folder / "state.json")
        if host_id := process.get("place"):
            state = state or process | {"state": "starting", "supervisor": None}
            if state["state"] not in (*FINAL_STATES, "lost") and (why := self.why_away(host_id)):
                state |= {"state": "away", "last": why}
            return state | {"place": host_id}
        if rebooted:
            return process | state | {"state": "lost"}
        if not state:
            try:  # a supervisor is to take it; it writes a state first
                late = time.time() - (folder / "task.json").stat().st_mtime > _TASK_SECONDS
            except OSError:
                late = True
            return process | {"state": "lost" if late else "starting", "supervisor": None}
        if state["state"] not in FINAL_STATES and not procfs.is_alive(state["supervisor"]):
            state["state"] = "lost"
        return state

    def why_away(self, host_id: str) -> str:
        """Why nothing is known of a host now; empty while it is connected."""
        seen = self.folder / "seen" / host_id
        try:
            why, silent = seen.read_text(), time.time() - seen.stat().st_mtime
        except OSError:
            return "nobody asked it yet"
        return why or ("" if silent < _CONTACT_SECONDS else f"nobody asked it for {silent:.0f} s")

    def record_contact(self, host_id: str, error: str = "") -> None:
        """A host is connected, or why it is not."""
        with contextlib.suppress(OSError):
            (self.folder / "seen" / host_id).write_text(error)

    def is_running(self) -> bool:
        """Whether any of its processes does, or may yet."""
        return any(
            state["state"] not in (*FINAL_STATES, "lost")
            or (not state.get("place") and procfs.is_alive(state.get("process")))
            for state in self.states().values()
        )

    def request_stop(self, mode: str, name: str = "") -> None:
        """ "save" or "now", to one process or to all; those that nobody runs yet nobody will."""
        for process, state in self._local_states().items():
            if state["state"] == "starting" and name in ("", process):
                (self.folder / process / "task.json").unlink(missing_ok=True)
        try:
            (self.folder / name / "stop").write_text(mode)
        except OSError:  # the disk is full: supervisors understand signals, too
            for process, state in self._local_states().items():
                if name in ("", process) and (mode == "now" or LEARNERS in (name, process)):
                    _signal_supervisor(state, signal.SIGTERM, times=1 if mode == "save" else 2)

    def kill(self, lost_only: bool = False) -> int:
        """Ends what did not obey, or only what a supervisor that is gone left; how many.

        Nobody but who was recorded, whose start time is compared, and who was started by them: the
        heartbeat file is in their environment.
        """
        killed = 0
        for name, state in self._local_states().items():
            if lost_only and state["state"] != "lost":
                continue
            killed += _signal_supervisor(state, signal.SIGKILL)
            for recorded in (state.get("process"), *_started_in(self.folder / name)):
                if recorded and procfs.is_alive(recorded):
                    with contextlib.suppress(OSError):
                        os.kill(recorded[0], signal.SIGKILL)
                        killed += 1
        return killed

    @contextlib.contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """By one frontend at a time. Raises RunInUse, unless it waits."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.folder.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(lock)
            raise RunInUse(f"another frontend starts or changes {self.name} right now") from None
        try:
            yield
        finally:
            os.close(lock)

    def refuse_running(self) -> None:
        """Raises RunInUse where it goes on."""
        if self.is_running():
            raise RunInUse(
                f"a run called {self.name} goes on: --status shows it, --stop ends it, "
                f"--tmux_sess=NAME starts another beside it"
            )

    def _local_states(self) -> dict[str, dict[str, Any]]:
        """States of those of its processes that are on this machine."""
        record = self.record
        host_ids = {p["name"]: p.get("place", "") for p in record.processes} if record else {}
        return {name: state for name, state in self.states().items() if not host_ids[name]}

    def create_state(self, token: str = "") -> None:
        """An empty state folder with a new token, or the one that is given. Raises RunInUse."""
        self.refuse_running()
        self.forget()
        self.folder.mkdir(parents=True, mode=0o700)
        (self.folder / "seen").mkdir()
        path = self.folder / "token"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token or secrets.token_hex(32))

    def forget(self) -> None:
        """Removes the run's record and states; what it wrote to its --logdir stays."""
        (self.folder / "run.json").unlink(missing_ok=True)  # first: then nobody takes it for lost
        shutil.rmtree(self.folder, ignore_errors=True)


def run_names() -> list[str]:
    """Of all runs that left something."""
    with contextlib.suppress(OSError):
        return sorted(path.parent.name for path in runs_folder().glob("*/run.json"))
    return []


def boot_id() -> str:
    """Of this machine's present life."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _signal_supervisor(state: dict[str, Any], number: int, times: int = 1) -> int:
    """To a process's supervisor, if it lives: how many it was."""
    supervisor = state.get("supervisor")
    if not supervisor or not procfs.is_alive(supervisor):
        return 0
    for i in range(times):
        with contextlib.suppress(OSError):
            os.kill(supervisor[0], number)
        time.sleep(0.01 * (i + 1 < times))  # two at once are one
    return 1


def _started_in(folder: Path) -> Iterator[list[int]]:
    """[pid, start] of those whose heartbeat file is in `folder`: a process, and all it started."""
    mark = f"{HEARTBEAT}={folder}/".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                pid = int(path.parent.name)
                yield [pid, procfs.start_time(pid)]


def remote_runs_folder() -> Path:
    """Of parts of runs that a frontend elsewhere has here. Hosts may share a home."""
    return runs_folder().parent / "hosts" / socket.gethostname() / "runs"


def runs_folder() -> Path:
    """Of all runs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "impala_mm" / "runs"
