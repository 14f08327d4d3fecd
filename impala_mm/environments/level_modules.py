"""Import of the modules of users' environments and wrappers.

A module is searched as `python -m` searches it: first in the current folder, then in the folders of
PYTHONPATH, then among the installed packages.
"""

import contextlib
import difflib
import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from typing import NoReturn

from impala_mm.environments.messages import describe_error
from impala_mm.environments.types import BadLevel


def import_module(module: str, named: str, after: str) -> None:
    """Import the module of an environment or of a wrapper; raise BadLevel if that fails.

    `named` is the level or the flag that names it, and `after` the part after the module's name.
    """
    _search_current_folder()
    try:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            _refuse_missing(missing, named, after)
        raise BadLevel(
            f"{named}: {module}{_found_at(module)} cannot be imported, since it raises "
            f"{describe_error(error)}"
        ) from error


def path_of(module: str) -> str:
    """Return the file or folder of a module, or an empty string; its parents are imported."""
    with contextlib.suppress(Exception, SystemExit):
        spec = importlib.util.find_spec(module)
        if spec and spec.has_location and spec.origin:
            return spec.origin
        if spec and spec.submodule_search_locations:
            return next(iter(spec.submodule_search_locations), "")
    return ""


def _search_current_folder() -> None:
    """Let imports search the current folder first, unless it is searched already."""
    with contextlib.suppress(OSError):  # the folder was removed
        here = Path.cwd()
        if not any(Path(entry).absolute() == here for entry in sys.path):
            sys.path.insert(0, str(here))


def _found_at(module: str) -> str:
    path = path_of(module)
    return f" was found at {path}, but" if path else ""


def _refuse_missing(missing: str, named: str, after: str) -> NoReturn:
    """Raise BadLevel: there is no such module; name the folders that were searched."""
    package, _, part = missing.rpartition(".")
    if package and (path := path_of(package)):
        raise BadLevel(f"{named}: {package} was found at {path}, but it has no module {part}")
    searched = _searched_folders()
    names = [found.name for found in pkgutil.iter_modules([str(folder) for folder in searched])]
    close = difflib.get_close_matches(missing, names, n=1, cutoff=0.7)
    hint = f"; did you mean {close[0]}{after}?" if close else ""
    folders = ", ".join(f"{folder} ({kind})" for folder, kind in searched.items())
    raise BadLevel(f"{named}: no module named {missing!r} was found in {folders}{hint}")


def _searched_folders() -> dict[Path, str]:
    """Return the folders that imports search, without the standard library's, and their origin."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    of_variable = {Path(entry).absolute() for entry in given if entry}
    standard = Path(os.__file__).parent
    found: dict[Path, str] = {}
    for folder in (Path(entry).absolute() for entry in sys.path):
        if folder in {standard, standard / "lib-dynload"} or folder.suffix == ".zip":
            continue
        kind = "installed packages" if "-packages" in folder.name else "sys.path"
        if folder in of_variable:
            kind = "PYTHONPATH" if folder.is_dir() else "PYTHONPATH, but there is no such folder"
        with contextlib.suppress(OSError):
            kind = "the current folder" if folder == Path.cwd() else kind
        found.setdefault(folder, kind)
    return found
