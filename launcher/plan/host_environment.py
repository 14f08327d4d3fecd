"""What a process finds on the machine of its row: the project, a Python, an mpirun.

Here it is looked up, elsewhere the host is asked; for a dry run it is supposed.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from launcher.plan.workers_csv import Worker

ROOT = Path(__file__).resolve().parents[2]
DEPLOYED = "impala_mm"  # in the home of a host, where no row says otherwise


class Ground(NamedTuple):
    """Of one row."""

    place: str  # empty: this machine
    address: str  # by which others reach it
    root: str  # the project's clone
    workdir: str  # that its processes run in
    python: str
    mpirun: str  # beside that Python, or the system's
    folder: str  # of the run's state
    as_root: bool
    missing: str = ""  # what is not there

    @property
    def experiment(self) -> str:
        """The program that each process is."""
        return str(Path(self.root) / "experiment.py")

    def path(self, relative: str) -> str:
        """Of what is not absolute: in the working directory."""
        return str(Path(self.workdir) / relative)


Grounds = Callable[[Worker], Ground]


def here(worker: Worker, folder: str) -> Ground:
    """This machine, as it is."""
    python = worker.python or sys.executable
    beside = f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return Ground(
        place="",
        address=worker.ip,
        root=str(ROOT),
        workdir=worker.workdir or str(Path.cwd()),
        python=python,
        mpirun=shutil.which("mpirun", path=beside) or "mpirun",
        folder=folder,
        as_root=os.geteuid() == 0,
    )


def roots(worker: Worker, deploys: bool) -> list[str]:
    """Where the project may be on another host: the first that is there."""
    if worker.workdir or deploys:
        return [worker.workdir or DEPLOYED]
    return [str(ROOT), DEPLOYED]


def pythons(worker: Worker) -> list[str]:
    """Of another host: the row's own, else that of the clone's environment."""
    return [worker.python] if worker.python else [".venv/bin/python", sys.executable]


def elsewhere(worker: Worker, place: str, address: str, known: dict[str, Any]) -> Ground:
    """By the facts of its host (`Here.facts`); as it is supposed to be, where there are none."""
    root = known.get("root") or roots(worker, deploys=False)[0]
    supposed = pythons(worker)[0]
    python = known.get("python") or (str(Path(root, supposed)) if "/" in supposed else supposed)
    missing = ""
    if known and not known["project"]:
        missing = f"there is no experiment.py in {root}"
    elif known and not known["python"]:
        missing = f"there is no {' or '.join(pythons(worker))} in {root}"
    return Ground(
        place=place,
        address=address,
        root=root,
        workdir=root,
        python=python,
        mpirun=known.get("mpirun") or "mpirun",
        folder=known.get("folder") or "~/.local/state/impala_mm/runs/NAME",
        as_root=known.get("uid") == 0,
        missing=missing,
    )
