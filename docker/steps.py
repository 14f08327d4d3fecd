"""What all set-up programs need: saying things, running long commands, one at a time.

Used by `install.py`, `horovod_wheel.py` and `wheelhouse.py`, before any package is installed:
standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Starts the command in its own process group and ends that whole group when our end of the pipe
# closes: compilers started by a set-up that was killed -9 must not go on behind the user's back.
_GUARD = """
import os, signal, subprocess, sys, threading
def end_with_parent():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=end_with_parent, daemon=True).start()
sys.exit(child.wait() & 0xFF)
"""
_PERCENT = re.compile(rb"\[ *(\d+)%\]")  # as CMake's makefiles print it


class Problem(Exception):
    """Something the user can mend; its text is one sentence that names the remedy."""


def say(message: str) -> None:
    """Prints one line of progress."""
    print(f"[set-up] {message}", flush=True)


def start(command: Sequence[object], **how: Any) -> subprocess.Popen:
    """Starts a command, in a process group of its own, that ends with this process at the latest.

    Its standard input is a pipe that must stay open and is never written to.
    """
    guarded = [sys.executable, "-c", _GUARD, *map(str, command)]
    return subprocess.Popen(guarded, stdin=subprocess.PIPE, start_new_session=True, **how)


def end(process: subprocess.Popen) -> None:
    """Ends what `start` started, with all its children, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(command: Sequence[object], log: Path, doing: str, env: Mapping[str, str]) -> None:
    """Runs a command into `log`, with a line of progress while it lasts; Problem if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    live = sys.stdout.isatty()
    began, said = time.monotonic(), 0.0
    with log.open("ab") as output:
        begin = output.tell()
        process = start(command, stdout=output, stderr=subprocess.STDOUT, env=dict(env))
        try:
            while process.poll() is None:
                time.sleep(0.1)
                seconds = time.monotonic() - began
                if seconds - said >= (0.5 if live else 15):
                    said = seconds
                    line = f"[set-up] {doing}: {_percent(log, begin)}{seconds:.0f} s"
                    print(f"\r{line}\033[K" if live else line, end="" if live else "\n", flush=True)
        finally:
            if live and said:
                print("\r\033[K", end="", flush=True)
            end(process)  # after Ctrl-C, or an exception of ours
    if process.returncode:
        with log.open("rb") as output:
            output.seek(begin)
            tail = output.read().decode(errors="replace").strip().splitlines()[-15:]
        raise Problem(f"{doing} failed; the end of {log}:\n  " + "\n  ".join(tail))


def _percent(log: Path, begin: int) -> str:
    """The newest `[ 42%]` that the command wrote, if it writes any."""
    with log.open("rb") as output:
        output.seek(max(begin, output.seek(0, os.SEEK_END) - 65536))
        found = _PERCENT.findall(output.read())
    return f"{found[-1].decode()}%, " if found else ""


@contextlib.contextmanager
def one_at_a_time(lock: Path, doing: str) -> Iterator[None]:
    """Holds `lock`; a second caller waits and says so. The kernel lets go when the holder dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is {doing}: waiting for it to end (lock: {lock})")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
