"""The files of this project: those of its clone, or those of the installed package.

An installed package keeps in `launcher/project/` what lies in no package: the pages, the scripts of
docker/, the lock, the example CSV.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # the clone, or the folder of installed packages
_SHIPPED = Path(__file__).resolve().parents[1] / "project"
IS_CLONE = not _SHIPPED.exists()
BUILD_HOROVOD = "make horovod" if IS_CLONE else "impala-mm install-horovod"  # on this machine
FILL_WHEELHOUSE = "make wheelhouse" if IS_CLONE else "impala-mm wheelhouse FOLDER"
INSTALL_LAUNCHER = "make setup LEARNERS=all" if IS_CLONE else "pip install 'impala_mm[launcher]'"
_PROGRAMS = ("experiment.py", "run_experiment_mm_raw.py")
_PACKAGES = ("impala_mm", "nets", "launcher")


def path_of(name: str) -> Path:
    """Return the path of a file that lies in no package, such as docker/wheelhouse.py."""
    return (ROOT if IS_CLONE else _SHIPPED) / name


def installed_files() -> dict[str, Path]:
    """Return all files of the installed package by their names in a clone."""
    found = {name: ROOT / name for name in _PROGRAMS}
    for package in _PACKAGES:
        found |= {str(path.relative_to(ROOT)): path for path in _files_in(ROOT / package)}
    return found | {str(path.relative_to(_SHIPPED)): path for path in _files_in(_SHIPPED)}


def _files_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        is_shipped = _SHIPPED in path.parents and folder != _SHIPPED
        if path.is_file() and "__pycache__" not in path.parts and not is_shipped:
            yield path
