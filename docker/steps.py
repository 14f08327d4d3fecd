"""Functions for all set-up programs: printing progress, running long commands, and a lock.

`install.py`, `horovod_wheel.py` and `wheelhouse.py` use it before any package is installed, so it
imports only the standard library.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Starts the command in its own process group, and ends that group when our end of the pipe closes:
# compilers must not keep running if set-up is killed with SIGKILL.
_GUARD = """
import os, signal, subprocess, sys, threading
def end_with_parent():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=end_with_parent, daemon=True).start()
sys.exit(child.wait() & 0xFF)
"""
# In messages of pip and uv if no package index answers, or if it lacks a package.
_UNREACHABLE = "connect|resolv|resolution|network|timed out|dns|no matching distribution"
_PERCENT = re.compile(rb"\[ *(\d+)%\]")  # progress as CMake's makefiles print it


class Problem(Exception):
    """An error that the user can fix; its message is one sentence that says how."""


def explain_unreachable(problem: Problem, otherwise: str) -> Problem:
    """Return the problem, with the remedies if no package index answers or has a package.

    `otherwise` is the remedy besides a mirror.
    """
    if not re.search(_UNREACHABLE, str(problem), re.IGNORECASE):
        return problem
    return Problem(
        f"{problem}\nIf this machine cannot reach the package index, name a mirror (`pip config "
        f"set global.index-url ADDRESS`) and run the same command again, or {otherwise}"
    )


def say(message: str) -> None:
    """Print one line of progress."""
    print(f"[set-up] {message}", flush=True)


def run_program(main: Callable[[list[str]], None], *errors: type[Exception]) -> None:
    """Run a set-up program with this process's arguments.

    A Problem, or one of `errors`, is printed in one line and ends the process with exit code 1;
    Ctrl-C ends it with 130.
    """
    printed: tuple[type[Exception], ...] = (Problem, *errors)
    try:
        main(sys.argv[1:])
    except printed as problem:
        sys.exit(f"[set-up] {problem}")
    except KeyboardInterrupt:
        print("\n[set-up] interrupted; the same command continues", file=sys.stderr)
        sys.exit(130)


def start(command: Sequence[object], **how: Any) -> subprocess.Popen:
    """Start a command in a new process group, which ends when this process ends, or before.

    Its standard input is a pipe that must stay open; nothing is written to it.
    """
    guarded = [sys.executable, "-c", _GUARD, *map(str, command)]
    return subprocess.Popen(guarded, stdin=subprocess.PIPE, start_new_session=True, **how)


def end(process: subprocess.Popen) -> None:
    """Kill a process that `start` returned, and all its children, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(command: Sequence[object], log: Path, doing: str, env: Mapping[str, str]) -> None:
    """Run a command, with its output in `log`, and print progress; raise Problem if it fails."""
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
            end(process)  # after Ctrl-C or an exception
    if process.returncode:
        with log.open("rb") as output:
            output.seek(begin)
            lines = output.read().decode(errors="replace").strip().splitlines()
        tail = [line for line in lines if "Retrying (Retry(" not in line][-15:]  # pip's
        raise Problem(f"{doing} failed; the end of {log}:\n  " + "\n  ".join(tail))


def _percent(log: Path, begin: int) -> str:
    """Return the newest percentage that the command wrote, as "42%, "; "" if there is none."""
    with log.open("rb") as output:
        output.seek(max(begin, output.seek(0, os.SEEK_END) - 65536))
        found = _PERCENT.findall(output.read())
    return f"{found[-1].decode()}%, " if found else ""


@contextlib.contextmanager
def one_at_a_time(lock: Path, doing: str) -> Iterator[None]:
    """Hold the lock file `lock`; if another process holds it, print that and wait.

    The kernel releases the lock when its holder ends.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is {doing}: waiting for it to end (lock: {lock})")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
