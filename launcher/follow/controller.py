"""The controller of a run: a frontend without a terminal, which follows the run until its end.

`--detach` and the key `d` leave it behind. It says in the run's state folder that it is there, so
that other frontends find it, and what it does in `controller.log` in the run's folder. The file
`mends` decides which frontend restarts what fails; the controller is the only one that can be
found dead, and is started again by the next frontend that follows the run.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_mm.runtime.timing import format_duration
from launcher.hosts.remote_node import RemoteNode
from launcher.supervise import file_lock, logind, procfs
from launcher.supervise.callbacks import Say
from launcher.supervise.json_types import fields_fit
from launcher.supervise.run_registry import Run, RunInUse, boot_id
from launcher.supervise.task import read_json, write_json

# In the run's state folder: what the controller reports, and locks, of the controller and of who
# starts it.
STATE_FILE = "controller.json"
_LOCK_FILE = "controller.lock"
_STARTING_FILE = "controller-starts.lock"
LOG_FILE = "controller.log"  # in the run's folder
NONE = "none"  # the value of --controller by which there is none
_BEAT_SECONDS = 2.0
_SILENT_SECONDS = 30.0  # seconds without a heartbeat after which it counts as hung
_START_SECONDS = 180.0  # timeout for it to start, including connections to hosts that are gone
_MESSAGE_SECONDS = 10.0  # seconds of waiting before a message says for what
_LOCK_SECONDS = 5.0  # seconds that an earlier controller may need to exit
_END_SECONDS = 25.0  # seconds that it may need to notice that the run has ended
_KILL_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL
# What it reports.
_KINDS: dict[str, Any] = {
    "process": list[int],  # [pid, start time]
    "command": list[str],
    "unreached": list[str],
    "logins": dict[str, int],
    "ready": bool,
    **dict.fromkeys(("boot", "host", "folder", "log", "ended"), str),
    **dict.fromkeys(("since", "beat"), float),
}


class NotStarted(Exception):
    """An error: the controller could not be started; the message says why."""


def read(run: Run) -> dict[str, Any]:
    """Return what the run's newest controller has reported; empty if it never had one.

    It is also empty if what it has reported is damaged.
    """
    entry = read_json(run.folder / STATE_FILE)
    is_whole = _KINDS.keys() <= entry.keys() and fields_fit(entry, _KINDS)
    return entry if is_whole and len(entry["process"]) == 2 else {}


def is_alive(entry: dict[str, Any]) -> bool:
    """Return whether a controller is running."""
    return bool(entry) and entry["boot"] == boot_id() and procfs.is_alive(entry["process"])


def is_missing(entry: dict[str, Any]) -> bool:
    """Return whether a run that has not ended has lost its controller: it was killed, or hangs."""
    return bool(entry) and not entry["ended"] and (not is_alive(entry) or _hangs(entry))


def describe(entry: dict[str, Any]) -> str:
    """Return a line about a controller; empty if there never was one."""
    if not entry:
        return ""
    who = f"process {entry['process'][0]} on {entry['host']}"
    age = format_duration(time.time() - entry["beat"])
    if entry["ended"]:
        return f"controller: ended, as {entry['ended']}"
    if not is_alive(entry):
        return (
            f"controller: gone, last seen {age} ago ({who}): nothing is restarted on other hosts "
            f"until `--attach` has started it again"
        )
    if _hangs(entry):
        return f"controller: {who} has hung for {age}: `--attach` kills it and starts it again"
    since = format_duration(time.time() - entry["since"])
    waits = f"; it cannot reach {', '.join(entry['unreached'])}" if entry["unreached"] else ""
    return f"controller: {who}, for {since}{waits}"


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


def _hangs(entry: dict[str, Any]) -> bool:
    return time.time() - entry["beat"] > _SILENT_SECONDS


class Controller:
    """The role of this process as the controller of a run."""

    def __init__(self, run: Run, command: Sequence[str], log: Path):
        """Become the run's controller. Raises RunInUse if there is one.

        `command` is the one by which a frontend starts the next controller if this one is killed.
        """
        self._path = run.folder / STATE_FILE
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
            "ready": False,
            "ended": "",
        }
        self._write()

    def begin(self, nodes: Mapping[str, RemoteNode]) -> None:
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
            _signal(entry["process"], signal.SIGKILL)
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
            (run.folder / STATE_FILE).unlink(missing_ok=True)
            if is_interrupted():
                return None
            raise NotStarted(f"it did not follow the run within {_START_SECONDS:g} s; log: {log}")
        if waited > _MESSAGE_SECONDS and not has_said:
            has_said = True
            say("waiting for the controller to connect to all hosts")
        time.sleep(0.05)


def end(entry: dict[str, Any]) -> None:
    """Wait until the controller of a run that was stopped has exited; end it if it does not."""
    if not is_alive(entry) or _wait_for_end(entry["process"], _END_SECONDS):
        return
    if not _signal(entry["process"], signal.SIGTERM):
        _signal(entry["process"], signal.SIGKILL)


def _signal(process: list[int], number: int) -> bool:
    """Signal a process, given by its [pid, start time]; return whether it has ended."""
    if procfs.is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process[0], number)
    return _wait_for_end(process, _KILL_SECONDS)


def _wait_for_end(process: list[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while procfs.is_alive(process):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _last_line(log: Path, begin: int) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(begin)
        if lines := file.read().decode(errors="replace").split("\n")[:-1]:
            return lines[-1]
    return f"it has printed nothing; log: {log}"


def command_of(frontend: Sequence[str], name: str) -> list[str]:
    """Return the command of the controller that does what a frontend of this command would do."""
    return [*frontend, "--control", "--nodetach", f"--tmux_sess={name}"]
