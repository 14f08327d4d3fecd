"""The runs of this user on this machine, by name: what was started, and how its processes are.

The frontend's machine records the complete run; another host records only its own processes, in
`hosts/HOSTNAME/runs` instead, and an experiment.py in the foreground of a terminal in a temporary
folder of its own (`foreground`).

    ~/.local/state/impala_mm/runs/NAME/      ($XDG_STATE_HOME, where it is set); mode 0700
        run.json     what was started (`Record`), which the frontend alone writes; mode 0600
        NAME/state.json    the state of a process, which its supervisor alone writes; those of
                     processes on other hosts are copies, which a connected frontend updates
        ...          other files of supervisors (see `task`)
        token        the secret that actors send to learners, and certificates; mode 0600
        seen/HOST_ID    updated while a frontend is connected to that host, else holds the error
        mends        locked by the frontend that restarts what fails (`follow.followed_run`)
        restarting-learners    exists while learners that end are started again
        open-windows    asks the connected frontend to open windows that were closed
        controller.*    what the run's controller reports, and its lock (`follow.controller`)
    NAME.lock        locked by the frontend that starts or changes the run

Commands about a run read only these files, so they work from any terminal and without the CSV, and
so does the dashboard.
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.supervise import file_lock, procfs
from launcher.supervise.errors import LauncherError
from launcher.supervise.json_files import ParsedFile, from_json, private, read_text, write_json
from launcher.supervise.leftovers import remove_shared_parameters
from launcher.supervise.process_state import State, parse_state, read_state
from launcher.supervise.task import HEARTBEAT, LEARNERS

_TASK_SECONDS = 60.0  # seconds within which a supervisor must read its task
_CONTACT_SECONDS = 15.0  # seconds without contact after which a host counts as unreachable
_REMOVALS = 10  # attempts to remove a run's state folder
_KILLED_SECONDS = 5.0  # seconds within which a process that was sent SIGKILL has ended


class RunInUse(LauncherError):
    """An error: a run of this name is running; its message says what to do."""


class UnreadableRecord(LauncherError):
    """An error: a run's record cannot be read; its message says what to do."""


@dataclasses.dataclass(frozen=True)
class ProcessEntry:
    """A process of a run as it was started."""

    name: str
    job: str
    host: str  # in the CSV
    place: str = ""  # the host's id; empty: this machine
    kind: dict[str, Any] = dataclasses.field(default_factory=dict)  # equal for identical rows
    log: str = ""
    port: int = 0  # of other learners' hosts: where they reach mpirun's agent


@dataclasses.dataclass(frozen=True)
class Record:
    """A run as it was started; callers share it, and change a copy (`dataclasses.replace`)."""

    name: str
    id: str  # of this start of the run
    time: float  # when it was started, in seconds since 1970
    boot: str  # id of the machine's boot: after a reboot no process of the run is left
    logdir: str
    socket: str  # of the tmux server of its session; empty without tmux
    processes: list[ProcessEntry]  # those of learners come first, that of mpirun first
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
    # The frontend's flags of the start, which later commands use, too; --env may contain secrets.
    start_flags: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def elsewhere(self) -> str:
        """The machine that started the run, if it is another, whose home this one shares."""
        is_here = self.boot == boot_id() or self.started_from in {"", socket.gethostname()}
        return "" if is_here else self.started_from

    @property
    def learner_places(self) -> list[str]:
        """The ids of the hosts of all learners, the first learner's first."""
        return [process.place for process in self.learner_processes]

    @property
    def learner_processes(self) -> list[ProcessEntry]:
        """The processes of all learners, that of mpirun first."""
        return [process for process in self.processes if process.job == "learner"]

    @property
    def other_processes(self) -> list[ProcessEntry]:
        """All processes but the learners'."""
        return [process for process in self.processes if process.job != "learner"]

    def for_hosts(self) -> dict[str, Any]:
        """Return what other hosts get of it: no commands, and no flags, which may hold secrets."""
        bare = dataclasses.replace(self, processes=[], learners=[], csvs=[])
        return dataclasses.asdict(bare) | {"flags": {}, "start_flags": {}}

    def host_id_of(self, name: str) -> str:
        """Return the id of a process's host; "" if the run has no such process."""
        return self._host_ids.get(name, "")

    @functools.cached_property
    def _host_ids(self) -> dict[str, str]:
        """The id of each process's host, by the process's name."""
        return {process.name: process.place for process in reversed(self.processes)}


class Run:
    """A run of a name, existing or not: its record, states and stop requests."""

    def __init__(self, name: str, folder: Path | None = None):
        """Represent the run `name`; `folder` holds all runs, by default those of this user.

        Raises LauncherError if a user may not choose the name.
        """
        if not folder and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise LauncherError(
                f"--tmux_sess: {name!r} is not a valid name: use letters, digits, - and _"
            )
        self.name = name
        self.folder = (folder or runs_folder()) / name
        self._record = ParsedFile(self.folder / "run.json", functools.partial(from_json, Record))
        self._states: dict[str, ParsedFile[State | None]] = {}  # by process

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same run, not necessarily with the same content."""
        return isinstance(other, Run) and self.folder == other.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    def started_on(self, machine: str) -> str:
        """Return the sentence for a run that another machine has started: how to end it."""
        return (
            f"{self.name} was started on {machine}, where it may be running: --stop it there; if "
            f"that machine is gone, remove {self.folder}"
        )

    @property
    def has_frontend(self) -> bool:
        """Whether this user's frontends on this machine know it by its name."""
        return self.folder.parent == runs_folder()

    @property
    def record(self) -> Record | None:
        """The record; None if there is no such run. Raises UnreadableRecord."""
        path = self.folder / "run.json"
        if record := self._record.read():
            return record
        if not path.exists():  # asked now, since another frontend may just have removed it
            return None
        states = [read_state(path.parent) for path in self.folder.glob("*/state.json")]
        recorded = [each for state in states if state for each in (state.supervisor, state.process)]
        if not any(map(procfs.is_alive, recorded)):  # no process of it is left
            return None
        raise UnreadableRecord(
            f"{path} cannot be read, or was written by another version of this program: remove "
            f"{self.folder}, which also ends its processes"
        )

    def write_record(self, record: Record) -> None:
        """Write the record, which makes the run known to all frontends."""
        write_json(self.folder / "run.json", dataclasses.asdict(record))

    def states(self) -> dict[str, State]:
        """Return the state of each process by name, in the order of the record.

        The state is "lost" if the process's supervisor is gone, "away" if its host is unreachable.
        """
        record = self.record
        if record is None:
            return {}
        rebooted, why_away = record.boot != boot_id(), functools.cache(self.why_away)
        return {p.name: self._process_state(p, rebooted, why_away) for p in record.processes}

    def state_of(self, name: str, otherwise: str = "lost") -> State:
        """Return the state of a process; `otherwise` if the run, or such a process, is gone."""
        return self.states().get(name) or State(name, "", "", otherwise)

    def _process_state(
        self, process: ProcessEntry, rebooted: bool, why_away: Callable[[str], str]
    ) -> State:
        name = process.name
        if (file := self._states.get(name)) is None:
            file = ParsedFile(self.folder / name / "state.json", parse_state)
            self._states[name] = file
        known = file.read()
        state = known or State(name, process.job, process.host, "starting", process.log)
        if (self.folder / name / "stop").exists():
            state = state._replace(is_to_stop=True)
        if process.place:
            if not state.has_ended and (why := why_away(process.place)):
                state = state._replace(state="away", last=why)
            return state._replace(place=process.place)
        if known:
            is_lost = not known.has_ended and not procfs.is_alive(known.supervisor)
        else:
            is_lost = not self._may_start(name)
        return state._replace(state="lost") if rebooted or is_lost else state

    def _may_start(self, name: str) -> bool:
        """Return whether a supervisor may still read a task; it writes a state first."""
        try:
            return time.time() - (self.folder / name / "task.json").stat().st_mtime < _TASK_SECONDS
        except OSError:
            return False

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
        with contextlib.suppress(OSError):  # the run was removed, or the disk is full
            (self.folder / "seen" / host_id).write_text(error)

    def record_frontend(self) -> None:
        """Record that a frontend is connected to the processes here, which wait for one."""
        with contextlib.suppress(OSError):  # the run has nothing here, or the disk is full
            (self.folder / "news").touch(mode=0o600)

    def is_running(self) -> bool:
        """Return whether any of its processes is running, or may still start."""
        return any(
            not state.has_ended or (not state.place and procfs.is_alive(state.process))
            for state in self.states().values()
        )

    def request_stop(self, mode: str, name: str = "") -> None:
        """Request a stop of one process, or of all: "save", "now", or "ended" (see `task`).

        Tasks that no supervisor has read yet are removed.
        """
        for process, state in self.local_states().items():
            if state.state == "starting" and name in ("", process):
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
            if lost_only and state.state != "lost":
                continue
            killed += _signal_supervisor(state, signal.SIGKILL)
            for recorded in (state.process, *_started_in(self.folder / name)):
                if recorded and procfs.is_alive(recorded):
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
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

        `logdir`: the run's folder if it is about to start, for `describe_writer`.
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

    def local_states(self) -> dict[str, State]:
        """Return the states of its processes on this machine, by name."""
        return {name: state for name, state in self.states().items() if not state.place}

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
        with open(work, "x", opener=private) as file:
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


def check_runs_folder() -> None:
    """Create the folder of all runs, and a file in it for a moment. Raises LauncherError."""
    folder = runs_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise LauncherError(
            f"{folder} cannot be written ({error.strerror}), but runs are recorded in it: set "
            f"XDG_STATE_HOME=FOLDER to record them in another folder"
        ) from None


def running_from_elsewhere() -> list[tuple[str, str]]:
    """Return the machine and the folder of each running run here whose frontend is elsewhere."""
    runs = readable_runs(remote_runs_folder())
    return [(record.started_from, record.logdir) for run, record in runs if run.is_running()]


def readable_runs(folder: Path) -> Iterator[tuple[Run, Record]]:
    """Yield the runs in a folder of runs, by name, with their records; damaged ones are left out.

    One of another version of this program does not keep others from being found.
    """
    for path in sorted(folder.glob("*/run.json")):
        run = Run(path.parent.name, folder)
        with contextlib.suppress(UnreadableRecord):
            if record := run.record:
                yield run, record


def run_names() -> list[str]:
    """Return the names of all runs that have a record."""
    return sorted(path.parent.name for path in runs_folder().glob("*/run.json"))


def boot_id() -> str:
    """Return the id of this machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _signal_supervisor(state: State, number: int, times: int = 1) -> int:
    """Signal a process's supervisor if it is running; return 1 if so, else 0."""
    if not state.supervisor or not procfs.is_alive(state.supervisor):
        return 0
    for i in range(times):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(state.supervisor[0], number)
        time.sleep(0.01 * (i + 1 < times))  # two signals at the same moment would count as one
    return 1


def _started_in(folder: Path) -> Iterator[procfs.Process]:
    """Yield a process and its descendants: their heartbeat is in `folder`."""
    mark = f"{HEARTBEAT}={folder}/".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it is another user's, or has just ended
            if mark in path.read_bytes():
                yield procfs.identify(int(path.parent.name))


def remote_runs_folder() -> Path:
    """Return the folder of runs of frontends on other hosts; hosts may share a home folder."""
    return runs_folder().parent / "hosts" / socket.gethostname() / "runs"


def runs_folder() -> Path:
    """Return the folder of all runs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "impala_mm" / "runs"


def foreground_prefix() -> str:
    """Return how the name of this process's state folder begins, as an experiment.py."""
    return f"impala_mm-{socket.gethostname()}.{os.getpid()}-"


def foreground_runs() -> list[Run]:
    """Return the runs of this user's experiment.py on this host, those that are running last.

    One that was killed leaves its state folder behind.
    """
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"impala_mm-{socket.gethostname()}.*/run.json"):
        run = Run(path.parent.name, path.parents[1])
        with contextlib.suppress(OSError, UnreadableRecord):  # it has just been removed; damaged
            # Nothing is read in the folders of other users.
            if run.folder.lstat().st_uid == os.geteuid() and (record := run.record):
                found.append((run.is_running(), record.time, run))
    return [run for _, _, run in sorted(found, key=lambda each: each[:2])]


def describe_writer(folder: str, starting: str = "") -> str:
    """Return what writes to a folder, such as "the run impala"; empty if nothing does.

    A frontend asks before it starts a run in a folder, on its own machine and on the learners'
    host: two runs in one folder would write into each other's logs. `starting` is the name of that
    run. Its own frontend holds its lock, which other hosts see, too, if they share the user's home.
    """
    for runs in (runs_folder(), remote_runs_folder()):
        for run, record in readable_runs(runs):
            if _uses(run, record, folder) and run.is_running():
                if run.has_frontend:
                    return f"the run {run.name} (--stop --tmux_sess={run.name} ends it)"
                return f"the run {run.name}, started from {record.started_from},"
        for path in sorted(runs.glob("*.lock")):
            if path.stem == starting:
                continue
            if is_same_folder(read_text(path), folder) and file_lock.is_held(path):
                return f"another frontend, which is starting the run {path.stem} in it,"
    lock = Path(folder) / "lock"  # of the learner: see impala_mm/records/run_folder.py
    if file_lock.is_held(lock):
        return f"process {read_text(lock) or 'of another machine'}"
    return ""


def is_same_folder(path: str, other: str) -> bool:
    """Return whether two absolute paths name the same folder; it need not exist."""
    return bool(path) and os.path.realpath(path) == os.path.realpath(other)


def _uses(run: Run, record: Record, folder: str) -> bool:
    """Return whether the folder is the run's, on this machine or as its learners' folder."""
    logs = [process.log for process in record.processes if process.name == LEARNERS]
    # `logdir` is a path on the frontend's machine.
    folders = [record.logdir] * run.has_frontend + [str(Path(log).parent) for log in logs if log]
    return any(is_same_folder(each, folder) for each in folders)
