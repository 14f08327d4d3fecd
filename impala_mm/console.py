"""The commands of an installed package: impala-mm and impala-mm-cluster are the two programs.

impala-mm --level_name=CartPole-v1              experiment.py
impala-mm-cluster --workers_csv_path=FILE       run_experiment_mm_raw.py
impala-mm results plot runs/FOLDER              curves, reports and comparisons of runs
impala-mm card runs/FOLDER MODEL                the folder of a model that a hub shows
impala-mm docs                                  prints the folder of the pages and their examples
impala-mm docs --open                           opens the pages in a browser, as a site
impala-mm install-horovod                       builds Horovod for several learners
impala-mm wheelhouse FOLDER                     downloads packages for hosts without internet
"""

import importlib.util
import os
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import NamedTuple, NoReturn

from impala_mm.config.messages import COMMANDS_VARIABLE, SHIPPED

_FOLDER = Path(__file__).resolve().parents[1]
_PROJECT = SHIPPED if SHIPPED.exists() else _FOLDER


class _SetUpProgram(NamedTuple):
    """A program of docker/, and the optional sets of packages that have all it needs."""

    file: str
    modules: tuple[str, ...]
    extras: str


_SET_UP = {
    "install-horovod": _SetUpProgram(
        "docker/horovod_wheel.py",
        ("tensorflow", "mpi4py", "cmake", "pip"),
        "cpu,multi,openmpi,build-horovod",
    ),
    "wheelhouse": _SetUpProgram("docker/wheelhouse.py", ("uv", "pip", "setuptools"), "setup"),
}


def run_impala_mm() -> NoReturn:
    """Run experiment.py or another command, or print the pages' folder."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if sys.argv[1:] == ["docs"]:
        print(_PROJECT)
        sys.exit()
    if sys.argv[1:] == ["docs", "--open"]:
        sys.exit(_open_site())
    if name == "results":
        _run([str(_PROJECT / "sandbox" / "results")], sys.argv[2:])
    if name == "card":
        _run(["-m", "impala_mm.jobs.card"], sys.argv[2:])
    if name not in _SET_UP:
        _run([str(_FOLDER / "experiment.py")], sys.argv[1:])
    program = _SET_UP[name]
    if missing := [each for each in program.modules if not importlib.util.find_spec(each)]:
        installs = f"pip install 'impala_mm[{program.extras}]'"
        sys.exit(f"error: {name} needs {' and '.join(missing)}: {installs}")
    _run([str(_PROJECT / program.file)], sys.argv[2:])


def run_impala_mm_cluster() -> NoReturn:
    """Run run_experiment_mm_raw.py."""
    _run([str(_FOLDER / "run_experiment_mm_raw.py")], sys.argv[1:])


def _open_site() -> str | None:
    """Open the site of the pages, built first where it is missing; return what prevents it."""
    site = _PROJECT / "build" / "site" / "index.html"
    if not site.exists():
        if not (_PROJECT / "Makefile").exists():
            return f"error: the site is built in a clone only, by 'make docs': read {_PROJECT}"
        if subprocess.run(["make", "-C", str(_PROJECT), "docs"], check=False).returncode:
            return "error: the site was not built; the lines above say why"
    print(site)
    if not webbrowser.open(site.as_uri()):
        return "error: no browser was found on this machine: open the file above in yours"
    return None


def _run(program: list[str], arguments: list[str]) -> NoReturn:
    os.environ[COMMANDS_VARIABLE] = "yes"
    os.execv(sys.executable, [sys.executable, *program, *arguments])
