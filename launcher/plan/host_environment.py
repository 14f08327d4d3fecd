"""The installation on the machine of a row: the project's clone, a Python, an mpirun.

It is looked up on this machine and requested from other hosts; a dry run assumes defaults.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from launcher.plan.project import IS_CLONE, ROOT
from launcher.plan.workers_csv import Worker
from launcher.supervise import mpirun

DEPLOY_FOLDER = "impala_mm"  # in the home folder of a host, unless its row has a workdir


class Installation(NamedTuple):
    """The paths of the project, its Python and its mpirun on the machine of a row."""

    host_id: str  # empty: this machine
    address: str  # by which other hosts reach the machine
    root: str  # the project's clone
    workdir: str  # working directory of its processes
    python: str
    mpirun: str  # beside that Python, or the system's
    folder: str  # the run's state folder
    as_root: bool
    missing: str = ""  # an error: the part that is missing

    @property
    def experiment(self) -> str:
        """The path of the program that every process runs."""
        return str(Path(self.root) / "experiment.py")

    def absolute_path(self, relative: str) -> str:
        """Return a relative path as an absolute one, starting at the working directory."""
        return str(Path(self.workdir) / relative)


InstallationOf = Callable[[Worker], Installation]


def local_installation(worker: Worker, folder: str) -> Installation:
    """Return the installation on this machine; `folder` is the run's state folder."""
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
    """Return where the project may be on another host; the first existing path counts."""
    if worker.workdir or deploys:
        return [worker.workdir or DEPLOY_FOLDER]
    return [str(ROOT), DEPLOY_FOLDER] if IS_CLONE else [DEPLOY_FOLDER]


def candidate_pythons(worker: Worker) -> list[str]:
    """Return which Pythons another host may have: the row's own, or the clone's environment."""
    return [worker.python] if worker.python else [".venv/bin/python", sys.executable]


def remote_installation(
    worker: Worker, host_id: str, address: str, facts: dict[str, Any]
) -> Installation:
    """Return the installation on another host.

    `facts` come from `MachineProbe.facts`; if they are empty, defaults are assumed.
    """
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
