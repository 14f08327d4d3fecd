"""What a process finds on the machine of its row: the project, a Python, an mpirun.

Here it is looked up, elsewhere the host is asked; for a dry run it is supposed.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from launcher.node import mpirun
from launcher.plan.workers_csv import Worker

ROOT = Path(__file__).resolve().parents[2]
DEPLOY_FOLDER = "impala_mm"  # in the home of a host, where no row says otherwise


class Installation(NamedTuple):
    """Where the project, its Python and its mpirun are on the machine of a row."""

    host_id: str  # empty: this machine
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

    def absolute_path(self, relative: str) -> str:
        """Of what is not absolute: in the working directory."""
        return str(Path(self.workdir) / relative)


InstallationOf = Callable[[Worker], Installation]


def local_installation(worker: Worker, folder: str) -> Installation:
    """This machine, as it is."""
    python = worker.python or sys.executable
    return Installation(
        host_id="",
        address=worker.ip,
        root=str(ROOT),
        workdir=worker.workdir or str(Path.cwd()),
        python=python,
        mpirun=mpirun.find(python) or "mpirun",
        folder=folder,
        as_root=os.geteuid() == 0,
    )


def candidate_roots(worker: Worker, deploys: bool) -> list[str]:
    """Where the project may be on another host: the first that is there."""
    if worker.workdir or deploys:
        return [worker.workdir or DEPLOY_FOLDER]
    return [str(ROOT), DEPLOY_FOLDER]


def candidate_pythons(worker: Worker) -> list[str]:
    """Of another host: the row's own, else that of the clone's environment."""
    return [worker.python] if worker.python else [".venv/bin/python", sys.executable]


def remote_installation(
    worker: Worker, host_id: str, address: str, facts: dict[str, Any]
) -> Installation:
    """Uses the facts of its host (`MachineProbe.facts`), or the defaults where there are none."""
    root = facts.get("root") or candidate_roots(worker, deploys=False)[0]
    default_python = candidate_pythons(worker)[0]
    python = facts.get("python") or (
        str(Path(root, default_python)) if "/" in default_python else default_python
    )
    missing = ""
    if facts and not facts["project"]:
        missing = f"there is no experiment.py in {root}"
    elif facts and not facts["python"]:
        missing = f"there is no {' or '.join(candidate_pythons(worker))} in {root}"
    return Installation(
        host_id=host_id,
        address=address,
        root=root,
        workdir=root,
        python=python,
        mpirun=facts.get("mpirun") or "mpirun",
        folder=facts.get("folder") or "~/.local/state/impala_mm/runs/NAME",
        as_root=facts.get("uid") == 0,
        missing=missing,
    )
