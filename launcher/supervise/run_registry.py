"""The runs of this user on this machine, by name.

The frontend's machine records the complete run; another host records only its own processes, in
`hosts/HOSTNAME/runs` instead.

    ~/.local/state/impala_mm/runs/NAME/      ($XDG_STATE_HOME, where it is set); mode 0700
        run.json     what was started (`Record`); mode 0600
        start_flags.json   the frontend's flags of the start, with the values of --env; mode 0600
        token        the secret that actors send to learners, and certificates; mode 0600
        controller.json    what the run's controller reports
        ...          the files of supervisors (see `task`); those of processes on other hosts are
                     copies, which a connected frontend updates
        seen/PLACE   updated while a frontend is connected to that host; holds the error otherwise

Commands about a run read only these files, so they work from any terminal and without the CSV.
"""

import contextlib
import dataclasses
import functools
import math
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from launcher.supervise import file_lock, procfs
from launcher.supervise.json_types import fields_fit
from launcher.supervise.leftovers import remove_shared_parameters
from launcher.supervise.process_state import parse_state
from launcher.supervise.task import (
    FINAL_STATES,
    HEARTBEAT,
    LEARNERS,
    parse_object,
    read_json,
    write_json,
)

_TASK_SECONDS = 60.0  # seconds within which a supervisor must read its task
_CONTACT_SECONDS = 15.0  # seconds without contact after which a host counts as unreachable
_REMOVALS = 10  # attempts to remove a run's state folder
_KILLED_SECONDS = 5.0  # seconds within which a process that was sent SIGKILL has ended

# Seconds for which a new file is parsed each time: within a tick of the file system's clock,
# another one may take its place with the same inode, time and size.
_NEW_SECONDS = 0.1
Parsed = TypeVar("Parsed")


class InvalidRunName(Exception):
    """An error: a run cannot have this name."""


class RunInUse(Exception):
    """An error: a run of this name is running; its message says what to do."""


class UnwritableState(Exception):
    """An error: the user's runs cannot be recorded; its message says what to do."""


class UnreadableRecord(Exception):
    """An error: a run's record cannot be read; its message says what to do."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A run as it was started; callers share it, and change a copy (`dataclasses.replace`)."""

    name: str
    id: str  # of this start of the run
    time: float  # when it was started, in seconds since 1970
    boot: str  # id of the machine's boot: after a reboot no process of the run is left
    logdir: str
    socket: str  # of the tmux server of its session; empty without tmux
    # For each: name, job, host, place (the host's id), kind (equal for identical rows), log; of
    # other learners' hosts also port. The processes of learners come first, that of mpirun first.
    processes: list[dict[str, Any]]
    flags: dict[str, str]  # common to all processes; used to add actors
    learners: list[str]  # the learners' command
    next_actor: int  # the number of the next new actor; numbers are not used twice
    shared: bool = False  # all learners' hosts share the folder `logdir`
    # By host id: how to reach the host, without passwords.
    targets: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    pythons: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # candidates by host id
    csvs: list[str] = dataclasses.field(default_factory=list)  # CSV files, the newest first
    started_from: str = ""  # host name of its frontend
    # Host ids of all learners' rows at the start: these hosts have the learners' certificate.
    first_learner_places: list[str] = dataclasses.field(default_factory=list)

    @property
    def elsewhere(self) -> str:
        """The machine that started the run, if it is another, whose home this one shares."""
        is_here = self.boot == boot_id() or self.started_from in {"", socket.gethostname()}
        return "" if is_here else self.started_from

    @property
    def learner_places(self) -> list[str]:
        """The ids of the hosts of all learners, the first learner's first."""
        return [p.get("place", "") for p in self.processes if p["job"] == "learner"]

    def host_id_of(self, name: str) -> str:
        """Return the id of a process's host; "" if the run has no such process."""
        return self._host_ids.get(name, "")

    @functools.cached_property
    def _host_ids(self) -> dict[str, str]:
        """The id of each process's host, by the process's name."""
        return {p["name"]: p.get("place", "") for p in reversed(self.processes)}


class ParsedFile(Generic[Parsed]):
    """A JSON file that is parsed once for each content; threads may share it.

    A frontend asks for the record and the states with each report of each host.
    """

    def __init__(self, path: Path, parse: Callable[[dict[str, Any]], Parsed]):
        """Represent the file; `parse` gets its object, or an empty one if it has none."""
        self._path, self._parse = path, parse
        self._known: tuple[tuple[int, int, int], Parsed] | None = None
        self._reading = threading.Lock()  # so that of many threads only one parses a new content

    def read(self) -> Parsed:
        """Return what `parse` returns; it is shared by all callers, who must not change it."""
        with self._reading:
            try:
                # Opened, since a network file system may answer `stat` from its cache.
                with self._path.open("rb", buffering=0) as file:
                    about = os.fstat(file.fileno())
                    version = about.st_ino, about.st_mtime_ns, about.st_size
                    if self._known and self._known[0] == version:
                        return self._known[1]
                    content = file.read()
            except OSError:
                content, version = b"", (0, 0, 0)
            parsed = self._parse(parse_object(content))
            is_new = time.time() - version[1] / 1e9 < _NEW_SECONDS
            # Damaged content is read again: it may be repaired in place.
            self._known = (version, parsed) if parsed and not is_new else None
            return parsed


class Run:
    """A run of a name, existing or not: its record, states and stop requests."""

    def __init__(self, name: str, folder: Path | None = None):
        """Represent the run `name`; `folder` holds all runs, by default those of this user."""
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise InvalidRunName(f"{name!r} is not a valid name: use letters, digits, - and _")
        self.name = name
        self.folder = (folder or runs_folder()) / name
        self._record = ParsedFile(self.folder / "run.json", _parse_record)
        self._states: dict[str, ParsedFile[dict[str, Any]]] = {}  # by process

    @property
    def record(self) -> Record | None:
        """The record; None if there is no such run. Raises UnreadableRecord."""
        path = self.folder / "run.json"
        if record := self._record.read():
            return record
        if not path.exists():  # asked now, since another frontend may just have removed it
            return None
        states = [read_json(path) for path in self.folder.glob("*/state.json")]
        recorded = [state.get(name) for state in states for name in ("supervisor", "process")]
        if not any(map(procfs.is_alive, recorded)):  # no process of it is left
            return None
        raise UnreadableRecord(
            f"{path} cannot be read, or was written by another version of this program: remove "
            f"{self.folder}, which also ends its processes"
        )

    def write_record(self, record: Record) -> None:
        """Write the record, which makes the run known to all frontends."""
        write_json(self.folder / "run.json", dataclasses.asdict(record))

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the state of each process by name, in the order of the record.

        The state is "lost" if the process's supervisor is gone, "away" if its host is unreachable.
        """
        record = self.record
        if record is None:
            return {}
        rebooted, why_away = record.boot != boot_id(), functools.cache(self.why_away)
        return {p["name"]: self._process_state(p, rebooted, why_away) for p in record.processes}

    def _process_state(
        self, process: dict[str, Any], rebooted: bool, why_away: Callable[[str], str]
    ) -> dict[str, Any]:
        folder = self.folder / process["name"]
        if (file := self._states.get(process["name"])) is None:
            file = ParsedFile(folder / "state.json", parse_state)
            self._states[process["name"]] = file
        state = dict(file.read())
        if host_id := process.get("place"):
            state = state or process | {"state": "starting", "supervisor": None}
            if state["state"] not in (*FINAL_STATES, "lost") and (why := why_away(host_id)):
                state |= {"state": "away", "last": why}
            return state | {"place": host_id}
        if rebooted:
            return process | state | {"state": "lost"}
        if not state:
            try:  # a supervisor that reads the task writes a state first
                late = time.time() - (folder / "task.json").stat().st_mtime > _TASK_SECONDS
            except OSError:
                late = True
            return process | {"state": "lost" if late else "starting", "supervisor": None}
        if state["state"] not in FINAL_STATES and not procfs.is_alive(state["supervisor"]):
            state["state"] = "lost"
        return state

    def why_away(self, host_id: str) -> str:
        """Return why a host is unreachable; empty while a frontend is connected to it."""
        seen = self.folder / "seen" / host_id
        try:
            why, silent = seen.read_text(), time.time() - seen.stat().st_mtime
        except OSError:
            return "no frontend has connected to it yet"
        return why or (
            ""
            if silent < _CONTACT_SECONDS
            else f"no frontend has been connected to it for {silent:.0f} s"
        )

    def record_contact(self, host_id: str, error: str = "") -> None:
        """Record that a host is connected, or the error because of which it is not."""
        with contextlib.suppress(OSError):
            (self.folder / "seen" / host_id).write_text(error)

    def is_running(self) -> bool:
        """Return whether any of its processes is running, or may still start."""
        return any(
            state["state"] not in (*FINAL_STATES, "lost")
            or (not state.get("place") and procfs.is_alive(state.get("process")))
            for state in self.states().values()
        )

    def request_stop(self, mode: str, name: str = "") -> None:
        """Request a stop of one process, or of all: "save", "now", or "ended" (see `task`).

        Tasks that no supervisor has read yet are removed.
        """
        for process, state in self.local_states().items():
            if state["state"] == "starting" and name in ("", process):
                (self.folder / process / "task.json").unlink(missing_ok=True)
        try:
            (self.folder / name / "stop").write_text(mode)
        except OSError:  # the disk may be full; supervisors react to signals, too
            for process, state in self.local_states().items():
                if name in ("", process) and (mode == "now" or LEARNERS in (name, process)):
                    _signal_supervisor(state, signal.SIGTERM, times=1 if mode == "save" else 2)

    def kill(self, lost_only: bool = False) -> int:
        """Kill all processes, or only those whose supervisor is gone; return their number.

        Only recorded processes whose start time matches are killed, and their descendants, which
        have the process's heartbeat file in their environment.
        """
        killed, ending = 0, []
        for name, state in self.local_states().items():
            if lost_only and state["state"] != "lost":
                continue
            killed += _signal_supervisor(state, signal.SIGKILL)
            for recorded in (state.get("process"), *_started_in(self.folder / name)):
                if recorded and procfs.is_alive(recorded):
                    with contextlib.suppress(OSError):
                        os.kill(recorded[0], signal.SIGKILL)
                        killed += 1
                        ending.append(recorded)
        until = time.monotonic() + _KILLED_SECONDS
        while any(map(procfs.is_alive, ending)) and time.monotonic() < until:
            time.sleep(0.02)
        remove_shared_parameters()
        return killed

    @contextlib.contextmanager
    def locked(self, wait: bool = False, logdir: str = "") -> Iterator[None]:
        """Lock the run against other frontends. Raises RunInUse if it is locked, unless `wait`.

        `logdir`: the run's folder if it is about to start, for `folder_use`.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        timeout = math.inf if wait else 0.0
        lock = file_lock.acquire(self.folder.with_suffix(".lock"), timeout)
        if lock is None:
            raise RunInUse(f"another frontend is starting or changing {self.name} right now")
        os.ftruncate(lock, 0)
        os.pwrite(lock, os.fsencode(logdir), 0)
        try:
            yield
        finally:
            os.close(lock)

    def refuse_running(self) -> None:
        """Raise RunInUse if the run is running."""
        if self.is_running():
            raise RunInUse(
                f"a run named {self.name} is running: --status --tmux_sess={self.name} shows it, "
                f"--stop --tmux_sess={self.name} ends it; another --tmux_sess, or none, starts "
                f"another run"
            )

    def local_states(self) -> dict[str, dict[str, Any]]:
        """Return the states of its processes on this machine, by name."""
        record = self.record
        host_ids = {p["name"]: p.get("place", "") for p in record.processes} if record else {}
        return {name: state for name, state in self.states().items() if not host_ids[name]}

    def create_state(self, token: str = "") -> None:
        """Create an empty state folder with this content of the token file, or only a new secret.

        Raises RunInUse.
        """
        self.refuse_running()
        self.forget()
        self.folder.mkdir(parents=True, mode=0o700)
        (self.folder / "seen").mkdir()
        self._write_token(token or secrets.token_hex(32))

    def complete_token(self, token: str) -> None:
        """Replace the token file by this content of it, if that has more: the learners' part."""
        if len(token) > (self.folder / "token").stat().st_size:
            self._write_token(token)

    def _write_token(self, content: str) -> None:
        path = self.folder / "token"
        work = path.with_name(f"token-{secrets.token_hex(8)}")
        with os.fdopen(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(content)
        work.rename(path)

    def forget(self) -> None:
        """Remove the run's record and states; the files in its --logdir stay."""
        (self.folder / "run.json").unlink(missing_ok=True)  # first, so that it never counts as lost
        for _ in range(_REMOVALS):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                break
            time.sleep(0.01)  # a process that is ending has just written its state


def _parse_record(content: dict[str, Any]) -> Record | None:
    """Return the record with this content; None if it is none, or damaged."""
    kinds = {field.name: field.type for field in dataclasses.fields(Record)}
    words = ("name", "job", "host")
    try:
        record = Record(**content) if fields_fit(content, kinds) else None
    except TypeError:
        return None
    if record and all(isinstance(p.get(word), str) for p in record.processes for word in words):
        return record
    return None


def check_runs_folder() -> None:
    """Create the folder of all runs, and a file in it for a moment. Raises UnwritableState."""
    folder = runs_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UnwritableState(
            f"{folder} cannot be written ({error.strerror}), but runs are recorded in it: set "
            f"XDG_STATE_HOME=FOLDER to record them in another folder"
        ) from None


def run_names() -> list[str]:
    """Return the names of all runs that have a record."""
    with contextlib.suppress(OSError):
        return sorted(path.parent.name for path in runs_folder().glob("*/run.json"))
    return []


def boot_id() -> str:
    """Return the id of this machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _signal_supervisor(state: dict[str, Any], number: int, times: int = 1) -> int:
    """Signal a process's supervisor if it is running; return 1 if so, else 0."""
    supervisor = state.get("supervisor")
    if not supervisor or not procfs.is_alive(supervisor):
        return 0
    for i in range(times):
        with contextlib.suppress(OSError):
            os.kill(supervisor[0], number)
        time.sleep(0.01 * (i + 1 < times))  # two signals at the same moment would count as one
    return 1


def _started_in(folder: Path) -> Iterator[list[int]]:
    """Yield [pid, start time] of a process and its descendants: their heartbeat is in `folder`."""
    mark = f"{HEARTBEAT}={folder}/".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                pid = int(path.parent.name)
                yield [pid, procfs.start_time(pid)]


def remote_runs_folder() -> Path:
    """Return the folder of runs of frontends on other hosts; hosts may share a home folder."""
    return runs_folder().parent / "hosts" / socket.gethostname() / "runs"


def runs_folder() -> Path:
    """Return the folder of all runs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "impala_mm" / "runs"
