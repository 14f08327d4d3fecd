"""The options and variables that every mpirun of this project gets, and where it is found.

The plan of a run uses them, the job that Slurm starts, and `experiment.py` for several learners on
this machine.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

# More ranks than cores are allowed, none is bound to a core, and none spins while it waits. These
# options have the same names in Open MPI 4 and 5.
OPTIONS = ("--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def find(python: str) -> str:
    """Return the path of the mpirun beside `python`, or of the system's; empty if there is none."""
    path = f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which("mpirun", path=path) or ""


def stays_here(command: Sequence[str]) -> bool:
    """Return whether a command is an mpirun with these options and ranks on its machine only."""
    return OPTIONS[0] in command and "--host" not in command


def local_command(program: str, count: int, command: Sequence[str]) -> list[str]:
    """Return the command that runs `count` ranks of `command` on this machine."""
    return [program, *OPTIONS, "-np", str(count), *command]


def environment(as_root: bool) -> dict[str, str]:
    """Return the variables that mpirun needs: as root it refuses to start without them."""
    return dict.fromkeys(_AS_ROOT, "1") if as_root else {}
