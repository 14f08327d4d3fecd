"""Starts the programs of this package on the machine where a process runs.

    launcher.supervise.supervisor TASK.json     runs a process; in the background, outside of tmux
    launcher.supervise.window FOLDER            shows a process; in a window of tmux
    launcher.supervise.mpi_agent start COMMAND  becomes the learners' mpirun, and is called by it
    launcher.supervise.mpi_host ADDRESS ...     runs mpirun's daemon on another learners' host

They need no installed packages; without them Python starts in half the time.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "launcher.supervise"  # first word of a command that `resolve` completes
# The project's clone, or the archive of this package.
_CODE_ROOT = Path(__file__).resolve().parents[2]
# Runs a module of the folder that is named first, as the archive runs its own, from any folder.
_RUN_MODULE = (
    "import runpy, sys; sys.path[0] = sys.argv.pop(1); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command_of(program: str, *arguments: Path) -> list[str]:
    """Return the command that runs a program; its working directory is `working_folder()`."""
    how = ["-m"] if _CODE_ROOT.is_dir() else [str(_CODE_ROOT)]
    return [sys.executable, "-ES", *how, f"{PACKAGE}.{program}", *map(str, arguments)]


def resolve(command: Sequence[str]) -> list[str]:
    """Return a command as it is on this machine: [PACKAGE, PROGRAM, ...] is one of this package.

    Any other command is returned unchanged. The working directory may be any.
    """
    if command[0] != PACKAGE:
        return list(command)
    how = ["-c", _RUN_MODULE] if _CODE_ROOT.is_dir() else []
    return [sys.executable, "-ES", *how, str(_CODE_ROOT), f"{PACKAGE}.{command[1]}", *command[2:]]


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
