"""The runs of this user on this machine, each known by its name.

    ~/.local/state/impala_mm/runs/NAME/      ($XDG_STATE_HOME, where it is set); mode 0700
        run.json     what was started (`Record`); mode 0600
        token        the secret that its actors show to its learners; mode 0600
        ...          what its supervisors write and read (`task`)

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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher import kernel
from launcher.task import FINAL, read_json, write_json

_BORN_SECONDS = 60.0  # within which the supervisors of a run that is being started appear


class BadName(Exception):
    """Says what a name must be."""


class Taken(Exception):
    """A run of this name goes on; says what to do."""


class Foreign(Exception):
    """What is kept of a run cannot be read; says what to do."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What was started."""

    name: str
    time: float
    boot: str  # of the machine: after another one nothing of the run is left
    logdir: str
    windows: bool  # whether it has a tmux session, of its name
    processes: list[dict[str, Any]]  # name, job, host, and what makes two alike
    settings: dict[str, str]  # flags of its processes, for more of them
    learners: list[str]  # their command


class Run:
    """One of them, there or not."""

    def __init__(self, name: str):
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise BadName(f"{name!r} is no name: letters, digits, - and _ make one")
        self.name = name
        self.folder = _home() / name

    @property
    def record(self) -> Record | None:
        """None where there is no such run."""
        content = read_json(self.folder / "run.json")
        try:
            return Record(**content) if content else None
        except TypeError:
            raise Foreign(
                f"{self.folder} was written by another version of this program: end what it "
                f"started (tmux kill-session -t {self.name}), and remove the folder"
            ) from None

    def write(self, record: Record) -> None:
        """Tells everybody."""
        write_json(self.folder / "run.json", dataclasses.asdict(record))

    def states(self) -> dict[str, dict[str, Any]]:
        """Of each process, by name, in the order of the record; `lost`: its supervisor is gone."""
        found = {}
        record = self.record
        for process in record.processes if record else []:
            state = read_json(self.folder / process["name"] / "state.json")
            if not state:
                late = record is not None and time.time() - record.time > _BORN_SECONDS
                state = process | {"state": "lost" if late else "starting", "supervisor": None}
            elif state["state"] not in FINAL and not kernel.lives(state["supervisor"]):
                state["state"] = "lost"
            found[process["name"]] = state
        return found

    def goes_on(self) -> bool:
        """Whether any of its processes does, or may yet."""
        record = self.record
        if record is None or record.boot != boot():
            return False
        return any(state["state"] not in (*FINAL, "lost") for state in self.states().values())

    def order(self, what: str, name: str = "") -> None:
        """ "save" or "now", to one process or to all."""
        (self.folder / name / "stop").write_text(what)

    def kill(self) -> int:
        """Ends what did not obey; how many. None but who was recorded: start times are compared."""
        killed = 0
        for state in self.states().values():
            for recorded in (state.get("supervisor"), state.get("process")):
                if recorded and kernel.lives(recorded):
                    for pid in [*kernel.descendants(recorded[0]), recorded[0]]:
                        with contextlib.suppress(OSError):
                            os.kill(pid, signal.SIGKILL)
                            killed += 1
        return killed

    @contextlib.contextmanager
    def being_changed(self) -> Iterator[None]:
        """By one frontend at a time. Raises Taken."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(_home() / f"{self.name}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Taken(f"another frontend starts or changes {self.name} right now") from None
        try:
            yield
        finally:
            os.close(lock)

    def renew(self) -> Path:
        """An empty state folder with a new token; the token's path. Raises Taken."""
        if self.goes_on():
            raise Taken(
                f"a run called {self.name} goes on: --status shows it, --stop ends it, "
                f"--tmux_sess=NAME starts another beside it"
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        token = self.folder / "token"
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        return token


def names() -> list[str]:
    """Of all runs that left something."""
    with contextlib.suppress(OSError):
        return sorted(path.parent.name for path in _home().glob("*/run.json"))
    return []


def boot() -> str:
    """Of this machine's present life."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _home() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "impala_mm" / "runs"
