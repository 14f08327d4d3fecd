"""Starts the programs of this package on the machine where a process runs.

    launcher.supervise.supervisor TASK.json     runs a process; in the background, outside of tmux
    launcher.supervise.window FOLDER            shows a process; in a window of tmux
    launcher.supervise.daemon_supervisor        runs mpirun's daemon; in the background
    launcher.supervise.mpirun_agent FOLDER      is called by mpirun, for each other learners' host

They need no installed packages; without them Python starts in half the time.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.supervise.task import LEARNERS_VARIABLE

# The project's clone, or the archive of this package.
_CODE_ROOT = Path(__file__).resolve().parents[2]


def command_of(program: str, *arguments: Path) -> list[str]:
    """Return the command that runs a program; its working directory is `working_folder()`."""
    how = ["-m"] if _CODE_ROOT.is_dir() else [str(_CODE_ROOT)]
    return [sys.executable, "-ES", *how, f"launcher.supervise.{program}", *map(str, arguments)]


def working_folder() -> Path:
    """Return the working directory of these programs."""
    return _CODE_ROOT if _CODE_ROOT.is_dir() else _CODE_ROOT.parent


def start_supervisor(
    task: Path, shows_output: bool = False, before: Sequence[str] = ()
) -> subprocess.Popen:
    """Start the supervisor of a task in a session of its own, which no terminal can end.

    `before`: what is put before its command.
    Its output is lost, unless `shows_output`: then it goes to the terminal of this process.
    """
    output = None if shows_output else subprocess.DEVNULL
    return subprocess.Popen(
        [*before, *command_of("supervisor", task)],
        cwd=working_folder(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C in the terminal is for the process that follows the run
    )


def start_daemon_supervisor(
    task: dict[str, Any], before: Sequence[str] = ()
) -> tuple[subprocess.Popen, dict[str, Any]]:
    """Start the supervisor of mpirun's daemon; return it, and where it listens for orders.

    `task`: a `daemon_supervisor.DaemonTask`; `before`: what is put before the command. Its input
    stays open. Raises OSError if it cannot listen.
    """
    process = subprocess.Popen(
        [*before, *command_of("daemon_supervisor")],
        cwd=working_folder(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {LEARNERS_VARIABLE: task["start"]},  # by which it is found, too
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(task).encode() + b"\n")
    process.stdin.flush()
    entry = json.loads(process.stdout.readline() or "{}")
    process.stdout.close()
    if "id" not in entry:
        process.stdin.close()
        process.wait()
        why = entry.get("error", f"it exited with code {process.returncode}")
        raise OSError(f"the supervisor of mpirun's daemon cannot listen: {why}")
    return process, entry
