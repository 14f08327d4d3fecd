"""Starts the programs of this package on the machine where a process runs.

    launcher.supervise.supervisor TASK.json     runs a process; in the background, outside of tmux
    launcher.supervise.window FOLDER            shows a process; in a window of tmux
    launcher.supervise.mpi_agent HOST ...       is called by mpirun, for each other learners' host
    launcher.supervise.mpi_host ADDRESS ...     runs mpirun's daemon on another learners' host

They need no installed packages; without them Python starts in half the time.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.supervise.task import PORTS_VARIABLE

PACKAGE = "launcher.supervise"  # first word of a command for `complete`
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


def complete(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return a command and its environment as they are on this machine, in any working directory.

    [PACKAGE, PROGRAM, ...] becomes that program of this package. An mpirun that starts learners on
    other hosts calls `mpi_agent` instead of ssh; it takes no paths that contain spaces or colons.
    """
    is_clone, found = _CODE_ROOT.is_dir(), dict(environment)
    if PORTS_VARIABLE in environment:
        own = [_CODE_ROOT / "launcher" / "supervise" / "mpi_agent.py"]
        agent = own if is_clone else [_CODE_ROOT, f"{PACKAGE}.mpi_agent"]
        found["PRTE_MCA_plm_ssh_agent"] = " ".join([sys.executable, "-ES", *map(str, agent)])
    if command[0] != PACKAGE:
        return list(command), found
    how = ["-c", _RUN_MODULE] if is_clone else []
    program = [str(_CODE_ROOT), f"{PACKAGE}.{command[1]}", *command[2:]]
    return [sys.executable, "-ES", *how, *program], found


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
