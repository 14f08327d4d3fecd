"""Real processes, for tests: run to their end, or watched; none outlives its test."""

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


HOROVOD = (Path(sys.executable).parent / "horovodrun").exists()


def run(*command: object, cwd: Path = ROOT, limit: int = 100, **env: str) -> tuple[int, str]:
    """A real process, to its end: (exit code, what it printed). Its whole group is ended."""
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
    try:
        printed, _ = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, printed


# What a learner and an actor answer to each signal that asks for their end.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 0}
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup it is to be ignored
    EXIT_CODES[signal.SIGHUP] = 129


needs_horovod = pytest.mark.skipif(not HOROVOD, reason="Horovod is not built here: make horovod")


_given: set[int] = set()
started: list["Process"] = []  # ended after each test


def free_port() -> int:
    """A port of the loopback interface that nobody listens on.

    Below those that the kernel gives to whoever asks for any, as mpirun does, a moment later.
    """
    while True:
        port = random.SystemRandom().randrange(10000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


class Process:
    """A real process that goes on while the test watches what it prints."""

    def __init__(self, *command: str, **env: str):
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._seen = 0
        self.process = self.begun(
            command,
            env,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        started.append(self)

    def begun(self, command: Sequence[str], env: dict[str, str], **how: Any) -> subprocess.Popen:
        """Here, in the project's folder; others may begin it elsewhere."""
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | env, **how)

    def printed(self) -> str:
        """All it has printed."""
        self._output.flush()
        return os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")

    def until(self, pattern: str, seconds: float = 60) -> re.Match:
        """Waits for what it prints from here on; the match, after which the next search begins."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            text = self.printed()
            found = re.search(pattern, text[self._seen :])
            if found:
                self._seen += found.end()
                return found
            assert not ended, f"it ended without printing {pattern!r}:\n{text}"
            assert time.monotonic() < deadline, f"no {pattern!r} in {seconds} s:\n{text}"
            time.sleep(0.05)

    def skip(self) -> None:
        """What it has printed so far is not searched any more."""
        self._seen = len(self.printed())

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
