"""Real processes for tests, run to their end or watched; none outlives its test."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deadlines import Deadline

from launcher.supervise.procfs import descendants, start_time

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = (sys.executable, str(ROOT / "experiment.py"))
HOROVOD = (Path(sys.executable).parent / "horovodrun").exists()


def run(*command: object, cwd: Path = ROOT, limit: int = 100, **env: str) -> tuple[int, str]:
    """Run a command to its end, and return (exit code, output); kill its group at the limit."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    printed, _ = finish(process, limit)
    return process.returncode, printed


def finish(process: subprocess.Popen, limit: float) -> tuple[str, str]:
    """Wait for a process to exit, and return what it wrote; kill its group at the limit."""
    deadline = Deadline(limit)
    try:
        while True:
            try:
                return process.communicate(timeout=min(limit, 1))
            except subprocess.TimeoutExpired as expired:
                if deadline.is_over():
                    expired.timeout = limit
                    expired.add_note(f"It had written:\n{(expired.output or b'').decode()}")
                    raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# The exit codes of a learner and an actor by the signal that stops them.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 0}
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup makes processes ignore it
    EXIT_CODES[signal.SIGHUP] = 129
END_REASONS = {number: f"stopped by {number.name}" for number in EXIT_CODES}
END_REASONS[signal.SIGUSR1] = "a stop was requested"


def wait(process: subprocess.Popen, seconds: float) -> int:
    """Wait for a process to exit, and return its exit code."""
    deadline = Deadline(seconds)
    while (code := process.poll()) is None:
        assert not deadline.is_over(), f"{process.args} still runs after {seconds} s"
        time.sleep(0.02)
    return code


needs_horovod = pytest.mark.skipif(not HOROVOD, reason="Horovod is not built: make horovod")


_given: set[int] = set()
started: list["Process"] = []  # killed after each test


def free_port() -> int:
    """Return a port of the loopback interface on which no process listens.

    It is below the range from which the kernel assigns ports to programs such as mpirun.
    """
    while True:
        port = random.SystemRandom().randrange(10000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def catch_command(logdir: Path, *flags: str) -> tuple[str, ...]:
    """Return the command of a run of Catch with its learner at a free port."""
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    return (*EXPERIMENT, "--level_name=catch", address, f"--logdir={logdir}", *flags)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return start_time(pid) != 0


def await_end_in(folder: Path, seconds: float = 60) -> None:
    """Wait until no process of a training works in a folder."""
    deadline = Deadline(seconds)
    while left := list(_trainings_in(folder)):
        assert not deadline.is_over(), left
        time.sleep(0.2)


def _trainings_in(folder: Path) -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if Path(os.readlink(path / "cwd")) == folder and b"experiment.py" in command:
                yield command


class Process:
    """A real process that keeps running while the test watches its output."""

    def __init__(self, *command: str, **env: str):
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._seen = 0
        self.process = self.begun(
            command, env, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )
        started.append(self)

    def begun(self, command: Sequence[str], env: dict[str, str], **how: Any) -> subprocess.Popen:
        """Start the process in the project's folder; subclasses may start it elsewhere."""
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | env, **how)

    def printed(self) -> str:
        """Return the complete output so far."""
        self._output.flush()
        return os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")

    def until(self, pattern: str, seconds: float = 60) -> re.Match:
        """Wait for a match in the new output, and return it; the next search begins after it."""
        deadline = Deadline(seconds)
        while True:
            ended = self.process.poll() is not None
            text = self.printed()
            found = re.search(pattern, text[self._seen :])
            if found:
                self._seen += found.end()
                return found
            assert not ended, f"it exited without printing {pattern!r}:\n{text}"
            assert not deadline.is_over(), f"no {pattern!r} in {seconds} s:\n{text}"
            time.sleep(0.05)

    def skip(self) -> None:
        """Exclude the output so far from later searches."""
        self._seen = len(self.printed())

    def wait(self, seconds: float) -> int:
        """Wait for the end, and return the exit code."""
        return wait(self.process, seconds)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """Send SIGKILL to it and to all that it has started."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def interrupt(self, seconds: float = 60) -> None:
        """Press Ctrl-C, and wait for the end of what a run has to save."""
        self.process.send_signal(signal.SIGINT)
        assert self.wait(seconds) == 130, self.printed()
