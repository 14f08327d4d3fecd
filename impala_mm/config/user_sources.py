"""The files of users' modules: --deploy copies them to hosts, and a run's folder keeps some.

Hosts need all files in a package's folder; of a module, its file. Modules of the same folder that
they import, and the settings beside an algorithm, belong to them. A run's folder keeps the modules
that the learner has imported.
"""

import ast
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from impala_mm.config import environment_flags, user_modules
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config

_OURS = {"impala_mm", "nets", "launcher"}
_SKIPPED = {"__pycache__", "runs", "wheelhouse", "workers.csv"}
_PLACE = r"^([A-Za-z_]\w*)[\w.]*:\w+$"  # as registries take it: "module:attribute"
_MAX_FILES = 2000  # of one package; a folder with more is no package of code


class TooManyFiles(Exception):
    """A package has more files than are copied; the message names it."""


def of_run(config: Config) -> dict[str, Path]:
    """Return the files of the modules that the flags name, and of what they import beside them.

    Of installed packages only the algorithm's is among them. The files' names are relative to the
    folder in which imports find the modules. Raises TooManyFiles.
    """
    found: dict[str, Path] = {}
    for name, place, is_installed in _places(config):
        home, waiting, seen = place.parent, [place], {*_OURS, name}
        while waiting:
            files = _files(waiting.pop())
            found |= {str(path.relative_to(home)): path for path in files}
            if not is_installed:
                python = [path for path in files if path.suffix == ".py"]
                names = {name for path in python for name in _imports(path)} - seen
                seen |= names
                waiting += [at for at in map(_location, names) if at and at.parent == home]
    return found


def imported(config: Config) -> dict[str, Path]:
    """Return the files of users' modules that this process has imported by now, named likewise.

    They are those in the folders of the modules that the flags name; of an installed package only
    the algorithm's own.
    """
    found: dict[str, Path] = {}
    for name, place, is_installed in _places(config):
        for module, path in _imported_from(place.parent):
            top = module.partition(".")[0]
            if top not in _OURS and (top == name or not is_installed):
                found[str(path.relative_to(place.parent))] = path
    return found


def _places(config: Config) -> Iterator[tuple[str, Path, bool]]:
    """Yield each module that the flags name, its file or folder, and whether it is installed.

    Installed packages are left out, but for the algorithm's.
    """
    for name, is_of_algorithm in _named(config).items():
        if name not in _OURS and (place := _location(name)):
            is_installed = _is_for_packages(place.parent)
            if is_of_algorithm or not is_installed:
                yield name, place, is_installed


def _imported_from(home: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name, file) of the imported modules that imports find in this folder."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.startswith(f"{home}{os.sep}"):
            continue
        # Below the folder may be others where modules are found, such as those of .venv.
        path, expected = Path(file), home.joinpath(*name.split("."))
        if path.parent == expected or path.with_name(path.name.partition(".")[0]) == expected:
            yield name, path


def _named(config: Config) -> dict[str, bool]:
    """Return the modules that flags name, without their parts: whether they are the algorithm's."""
    levels = [level.strip().removeprefix("gym:") for level in config.level_name.split(",")]
    modules = [level.rpartition(":")[0] for level in levels]
    modules += [wrapper.module for wrapper in environment_flags.read_wrappers(config.env_wrappers)]
    teachers = [each.strip() for each in getattr(config, "teacher", "").split(",")]
    players = [*teachers, *environment_flags.read_opponents(config.opponents)]
    modules += [each.rpartition(":")[0] for each in players if not Path(each).exists()]
    modules += user_modules.module_names(config.imports)
    named = {module.partition(".")[0]: False for module in modules if module}
    if config.algorithm not in BUILT_IN:
        name = config.algorithm.partition(".")[0]
        named[name] = True
        if name == config.algorithm:
            named[f"{name}_settings"] = True
    return named


def _is_for_packages(folder: Path) -> bool:
    """Return whether installed packages are in a folder, also by `pip install --target`."""
    return "-packages" in folder.name or any(folder.glob("*.dist-info"))


def _location(name: str) -> Path | None:
    """Return the file or folder of a module without parents; None if it is in neither."""
    path = Path(user_modules.path_of(name)).absolute()
    where = path.parent if path.name == "__init__.py" else path
    is_package = where.name == name and where.is_dir()
    return where if is_package or where.name == f"{name}.py" else None


def _files(where: Path) -> list[Path]:
    if where.is_file():
        return [where]
    found = []
    for folder, folders, names in os.walk(where):
        folders[:] = [name for name in sorted(folders) if _is_kept(name)]
        found += [Path(folder, name) for name in sorted(names) if _is_kept(name)]
        if len(found) > _MAX_FILES:
            raise TooManyFiles(
                f"{where} holds more than {_MAX_FILES:,} files: move the modules that a run needs "
                f"to a package of their own"
            )
    return [path for path in found if path.is_file()]


def _is_kept(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(".pyc") and name not in _SKIPPED


def _imports(path: Path) -> Iterator[str]:
    """Yield the first part of each module's name that a file imports, or names as a place."""
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(_PLACE, node.value)
