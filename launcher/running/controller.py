"""The controller of a run: a frontend without a terminal, which follows the run until its end.

`--detach` and the key `d` leave it behind. It says in the run's state folder that it is there, so
that other frontends find it, and what it does in `controller.log` in the run's folder. The file
`mends` decides which frontend restarts what fails; the controller is the only one that can be
found dead, and is started again by the next frontend that follows the run.
"""

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from impala_mm.runtime.timing import format_duration
from launcher.node import file_lock, logind, procfs, recorded_process
from launcher.node.callbacks import Say
from launcher.node.controlled_node import (
    CONTROLLED,
    CONTROLLER_STATE,
    SILENT_SECONDS,
    is_controller_state,
    read_term,
)
from launcher.node.run_registry import Run, RunInUse, boot_id
from launcher.node.task import read_json, write_json

# Locks in the run's state folder: of the controller, and of who starts it.
_LOCK_FILE = "controller.lock"
_STARTING_FILE = "controller-starts.lock"
LOG_FILE = "controller.log"  # in the run's folder
# Values of the flag --controller: the controller is on this machine, or there is none.
HERE, NONE = "here", "none"
_BEAT_SECONDS = 2.0
_START_SECONDS = 180.0  # timeout for it to start, including connections to hosts that are gone
_MESSAGE_SECONDS = 10.0  # seconds of waiting before a message says for what
_LOCK_SECONDS = 5.0  # seconds that an earlier controller may need to exit
_END_SECONDS = 25.0  # seconds that it may need to notice that the run has ended


class NotStarted(Exception):
    """An error: the controller could not be started; the message says why."""


def read(run: Run) -> dict[str, Any]:
    """Return what the run's newest controller has reported; empty if it never had one.

    It is also empty if what it has reported is damaged.
    """
    entry = read_json(run.folder / CONTROLLER_STATE)
    if not is_controller_state(entry):
        return {}
    if entry.get("place"):
        entry["away"] = run.why_away(entry["place"])
        entry["superseded"] = entry["term"] < read_term(run.folder / CONTROLLED)
    return entry


def is_alive(entry: dict[str, Any]) -> bool:
    """Return whether a controller is running."""
    if not entry or entry.get("place"):
        return bool(entry) and entry["alive"]
    return entry["boot"] == boot_id() and procfs.is_alive(entry["process"])


def is_missing(entry: dict[str, Any]) -> bool:
    """Return whether a run that has not ended has no controller any more.

    It was killed, hangs, or a frontend has taken over from it. Whether it was killed is not known
    while its host is unreachable.
    """
    if not entry or entry["ended"]:
        return False
    if entry.get("superseded"):
        return True
    if entry.get("away"):
        return False
    return not is_alive(entry) or bool(_silence(entry))


def describe(entry: dict[str, Any]) -> str:
    """Return a line about a controller; empty if there never was one."""
    if not entry:
        return ""
    who = f"process {entry['process'][0]} on {entry['host']}"
    age = format_duration(time.time() - entry["beat"])
    if entry["ended"]:
        return f"controller: ended, as {entry['ended']}"
    if why := _why_not_relied_on(entry):
        return f"controller: {who}, {why}"
    if not is_alive(entry):
        return (
            f"controller: gone, last seen {age} ago ({who}): nothing is restarted on other hosts "
            f"until `--attach` has started it again"
        )
    if _silence(entry):
        return f"controller: {who} has hung for {age}: `--attach` kills it and starts it again"
    since = format_duration(time.time() - entry["since"])
    waits = f"; it cannot reach {', '.join(entry['unreached'])}" if entry["unreached"] else ""
    if waits and entry.get("place"):
        waits += ": what fails there waits for `--attach`"
    return f"controller: {who}, for {since}{waits}"


def _why_not_relied_on(entry: dict[str, Any]) -> str:
    if entry.get("superseded"):
        return "from which a frontend has taken over: `--attach` starts the next one"
    if entry.get("away"):
        return f"which is unreachable from here ({entry['away']})"
    return ""


def describe_logins(entry: dict[str, Any]) -> str:
    """Return how a controller logs in to the other hosts; empty if there are none."""
    if not entry["logins"]:
        return ""
    how = ", ".join(
        f"{login} ({count} host{'s' * (count != 1)})" for login, count in entry["logins"].items()
    )
    sentence = f"the controller connects by {how}"
    if any("the agent's" in login for login in entry["logins"]):
        sentence += "; it needs that SSH agent to run as long as the run"
    return sentence


def _silence(entry: dict[str, Any]) -> float:
    """Return the seconds since the last heartbeat if they are too many, else 0."""
    silent = time.time() - entry["beat"]
    if entry.get("place"):  # its host compares the times
        return silent if entry["hung"] else 0.0
    return silent if silent > SILENT_SECONDS else 0.0


class Node(Protocol):
    """A host, as the controller reports on it."""

    login: str
    error: str


class Controller:
    """The role of this process as the controller of a run."""

    def __init__(self, run: Run, command: Sequence[str], log: Path, term: int = 0):
        """Become the run's controller. Raises RunInUse if there is one.

        `command` is the one by which a frontend starts the next controller if this one is killed.
        `term`: that of a controller on a host (`controlled_node.TERM`).
        """
        self._path = run.folder / CONTROLLER_STATE
        self._lock = file_lock.acquire(run.folder / _LOCK_FILE, _LOCK_SECONDS)
        if self._lock is None:
            raise RunInUse(f"{run.name} has a controller: {describe(read(run))}")
        self._writing, self._ended = threading.Lock(), threading.Event()
        self._entry: dict[str, Any] = {
            "process": [os.getpid(), procfs.start_time(os.getpid())],
            "boot": boot_id(),
            "host": socket.gethostname(),
            "since": time.time(),
            "command": list(command),
            "folder": os.getcwd(),
            "log": str(log),
            "logins": {},
            "unreached": [],
            "term": term,
            "ready": False,
            "ended": "",
        }
        self._write()

    def begin(self, nodes: Mapping[str, Node]) -> None:
        """Report that the run is being followed, and now and then which hosts are unreachable.

        `nodes`: by host id.
        """
        self._nodes = nodes
        logins = Counter(node.login for node in nodes.values() if not node.error)
        self._write(ready=True, logins=dict(logins), unreached=self._unreached())
        threading.Thread(target=self._beat, name="controller's heartbeat", daemon=True).start()

    def end(self, why: str) -> None:
        """Report that the controller has done its work, and why there is no more."""
        self._ended.set()
        self._write(ended=why)

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            self._write(unreached=self._unreached())

    def _unreached(self) -> list[str]:
        return [host_id for host_id, node in dict(self._nodes).items() if node.error]

    def _write(self, **changes: Any) -> None:
        with self._writing, contextlib.suppress(OSError):  # `--stop` has removed the folder
            self._entry |= changes | {"beat": time.time()}
            write_json(self._path, self._entry)


def ensure(
    run: Run,
    command: Sequence[str],
    folder: str,
    log: Path,
    say: Say,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Start a controller in the background, unless there is one; return what it reports.

    It follows the run then, and no terminal, and no end of a login, ends it. `folder`: its working
    directory. The result is None if `is_interrupted` before that. Raises NotStarted.
    """
    lock = file_lock.acquire(run.folder / _STARTING_FILE, _START_SECONDS)  # of other frontends
    try:
        entry = read(run)
        if is_alive(entry) and not is_missing(entry):
            return entry
        if is_alive(entry):  # it hangs
            recorded_process.kill(entry["process"])
        return _start(run, command, folder, log, say, is_interrupted)
    finally:
        if lock is not None:
            os.close(lock)


def _start(
    run: Run,
    command: Sequence[str],
    folder: str,
    log: Path,
    say: Say,
    is_interrupted: Callable[[], bool],
) -> dict[str, Any] | None:
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [*(logind.staying_command() or []), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    began, has_said = time.monotonic(), False
    while True:
        entry = read(run)
        if entry and entry["process"][0] == process.pid and (entry["ready"] or entry["ended"]):
            return entry
        waited = time.monotonic() - began
        if process.poll() is not None:
            raise NotStarted(f"it exited with code {process.returncode}: {_last_line(log, begin)}")
        if waited > _START_SECONDS or is_interrupted():
            process.kill()
            process.wait()
            (run.folder / CONTROLLER_STATE).unlink(missing_ok=True)
            if is_interrupted():
                return None
            raise NotStarted(f"it did not follow the run within {_START_SECONDS:g} s; log: {log}")
        if waited > _MESSAGE_SECONDS and not has_said:
            has_said = True
            say("waiting for the controller to connect to all hosts")
        time.sleep(0.05)


def end(entry: dict[str, Any]) -> None:
    """Wait until the controller of a run that was stopped has exited; kill it if it does not.

    One on another host is ended there (`RunControl.end_controller`).
    """
    if not is_alive(entry) or entry.get("place"):
        return
    if not recorded_process.wait_for_end(entry["process"], _END_SECONDS):
        recorded_process.end(entry["process"])


def _last_line(log: Path, begin: int) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(begin)
        if lines := file.read().decode(errors="replace").split("\n")[:-1]:
            return lines[-1]
    return f"it has printed nothing; log: {log}"


def command_of(frontend: Sequence[str], name: str) -> list[str]:
    """Return the command of the controller that does what a frontend of this command would do."""
    return [*frontend, "--control", "--nodetach", f"--tmux_sess={name}"]
