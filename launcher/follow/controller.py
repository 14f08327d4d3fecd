"""The controller of a run: a frontend without a terminal, which follows the run until its end.

`--detach` and the key `d` leave it behind. In the run's state folder it says that it is there, so
that other frontends find it, and in `controller.log` in the run's folder what it does. It restarts
what fails if it is the one that may (`FollowedRun.holds_lock`); a controller that was killed, or
hangs, is started again by the next frontend that follows the run.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from impala_mm.runtime.timing import format_duration
from launcher.supervise import file_lock, procfs, programs
from launcher.supervise.callbacks import Say
from launcher.supervise.json_files import from_json, read_json, write_json
from launcher.supervise.run_registry import Run, RunInUse, boot_id

STATE_FILE = "controller.json"  # in the run's state folder: its report while it follows the run
_LOCK_FILE = "controller.lock"  # there, too: held by the controller
LOG_FILE = "controller.log"  # in the run's folder
NONE = "none"  # the value of --controller by which there is none
_BEAT_SECONDS = 2.0
_SILENT_SECONDS = 30.0  # seconds without a heartbeat after which it counts as hung
_START_SECONDS = 180.0  # timeout for it to start, including connections to hosts that are gone
_MESSAGE_SECONDS = 10.0  # seconds of waiting before a message says for what
_LOCK_SECONDS = 5.0  # seconds that an earlier controller may need to exit
_END_SECONDS = 25.0  # seconds that it may need to notice that the run has ended


class NotStarted(Exception):
    """An error: the controller could not be started; the message says why."""


@dataclasses.dataclass(frozen=True)
class Report:
    """A controller's description of itself, which stays while it follows a run."""

    process: procfs.Process
    boot: str
    host: str
    since: float
    command: list[str]  # by which a frontend starts the next one if this one is killed
    folder: str  # its working directory
    log: str
    beat: float = 0.0  # when it was alive last: the time of the file

    @property
    def is_alive(self) -> bool:
        """Whether the controller is running."""
        return self.boot == boot_id() and procfs.is_alive(self.process)

    @property
    def is_missing(self) -> bool:
        """Whether the run has lost its controller: it was killed, or hangs."""
        return not self.is_alive or time.time() - self.beat > _SILENT_SECONDS

    def describe(self) -> str:
        """Return a line about the controller."""
        who = f"process {self.process[0]} on {self.host}"
        age = format_duration(time.time() - self.beat)
        if not self.is_alive:
            return (
                f"controller: gone, last seen {age} ago ({who}): nothing is restarted on other "
                f"hosts until `--attach` has started it again"
            )
        if self.is_missing:
            return f"controller: {who} has hung for {age}: `--attach` kills it and starts it again"
        return f"controller: {who}, for {format_duration(time.time() - self.since)}"

    def kill(self) -> None:
        """End the controller, which hangs or outlives its run."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.process[0], signal.SIGKILL)
        self.wait(_LOCK_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Wait until the controller has ended; return whether it has."""
        until = time.monotonic() + seconds
        while self.is_alive and time.monotonic() < until:
            time.sleep(0.05)
        return not self.is_alive


def read(run: Run) -> Report | None:
    """Return what the run's controller has reported; None without one, or if it is damaged."""
    path = run.folder / STATE_FILE
    try:
        beat = path.stat().st_mtime
    except OSError:
        return None
    return from_json(Report, read_json(path) | {"beat": beat})


class Controller:
    """The role of this process as the controller of a run."""

    def __init__(self, run: Run):
        """Become the run's controller. Raises RunInUse if there is one."""
        self._path = run.folder / STATE_FILE
        self._lock = file_lock.acquire(run.folder / _LOCK_FILE, _LOCK_SECONDS)  # until it exits
        if self._lock is None:
            raise RunInUse(f"{run.name} has a controller, which --status shows")
        self._ended = threading.Event()

    def begin(self, command: Sequence[str], log: Path) -> None:
        """Report that the run is being followed, and from now on that this process is alive.

        `command` is the one by which a frontend starts the next controller if this one is killed.
        """
        report = Report(
            procfs.identify(os.getpid()),
            boot_id(),
            socket.gethostname(),
            time.time(),
            list(command),
            os.getcwd(),
            str(log),
        )
        write_json(self._path, dataclasses.asdict(report))
        threading.Thread(target=self._beat, name="controller's heartbeat", daemon=True).start()

    def _beat(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # `--stop` has removed the folder
            while not self._ended.wait(_BEAT_SECONDS):
                now = time.time()
                os.utime(self._path, (now, now))

    def end(self) -> None:
        """Remove the report: the run has ended."""
        self._ended.set()
        self._path.unlink(missing_ok=True)


def ensure(
    run: Run,
    command: Sequence[str],
    folder: str,
    log: Path,
    say: Say,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Report | None:
    """Start a controller in the background, unless there is one; return what it reports.

    It follows the run then, and no terminal, and no end of a login, ends it. `folder`: its working
    directory. The result is None if `is_interrupted` before that. Raises NotStarted.
    """
    report = read(run)
    if report and not report.is_missing:
        return report
    if report:
        report.kill()
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [*(programs.staying_command() or []), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    began, has_said = time.monotonic(), False
    while True:
        report = read(run)
        if report and not report.is_missing:
            if report.process[0] != process.pid:  # another frontend has started one meanwhile
                process.kill()
                process.wait()
            return report
        waited = time.monotonic() - began
        if process.poll() is not None and not file_lock.is_held(run.folder / _LOCK_FILE):
            raise NotStarted(f"it exited with code {process.returncode}: {_last_line(log, begin)}")
        if waited > _START_SECONDS or is_interrupted():
            process.kill()
            process.wait()
            if is_interrupted():
                return None
            raise NotStarted(f"it did not follow the run within {_START_SECONDS:g} s; log: {log}")
        if waited > _MESSAGE_SECONDS and not has_said:
            has_said = True
            say("waiting for the controller to connect to all hosts")
        time.sleep(0.05)


def end(report: Report | None) -> None:
    """Wait until the controller of a run that was stopped has exited; kill it if it does not."""
    if report and not report.wait(_END_SECONDS):
        report.kill()


def _last_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        printed = file.read().decode(errors="replace").split("\n")[:-1]
    return printed[-1] if printed else f"it has printed nothing; log: {log}"


def command_of(frontend: Sequence[str], name: str) -> list[str]:
    """Return the command of the controller that does what a frontend of this command would do."""
    return [*frontend, "--control", "--nodetach", f"--tmux_sess={name}"]
