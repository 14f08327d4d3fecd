"""Search and import of users' modules, which --import, --algorithm and --level_name may name.

Every process imports those of --import, and those that installed packages offer by entry points of
the group `impala_mm`, before anything else of the user's: they may add to any `Registry`, and
register environments of gymnasium.

A module is searched as `python -m` searches it: first in the current folder, then in the folders of
PYTHONPATH, then among the installed packages. An installed package of ours has the modules of
`sandbox`, which presets name, in a folder that is searched last.

Both programs, and the library's functions, call `refuse_foreign` before they import `nets` or
`launcher`.
"""

import contextlib
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from impala_mm.config.errors import BadEnvironment, ForeignPackage, UserMistake
from impala_mm.config.flags import refuse, warn
from impala_mm.config.messages import SHIPPED, describe_error, escape, users_traceback

_GROUP = "impala_mm"  # of entry points, whose values are modules
_OURS = ("nets", "launcher")  # packages of this project whose names others may have
_ROOT = Path(__file__).resolve().parents[2]


class BadModule(Exception):
    """A module cannot be imported; the message says why, and the cause is the module's error."""


_imported: dict[str, None] = {}  # what `import_all` has imported here, in this order


def import_all(modules: str) -> None:
    """Import the modules of --import, and those of entry points; raise BadModule."""
    _import_offered()
    for module in module_names(modules):
        try:
            import_module(module)
        except BadModule as error:
            raise BadModule(f"--import={module}: {error}") from error.__cause__
        _imported[module] = None


def imported() -> str:
    """Return what --import has named in this process, for those that it starts."""
    return ",".join(_imported)


def module_names(modules: str) -> list[str]:
    """Return the names in the text of --import."""
    return [name for name in map(str.strip, modules.split(",")) if name]


@functools.cache
def _import_offered() -> None:
    """Import the modules that installed packages offer; warn of those that cannot be imported."""
    for offer in importlib.metadata.entry_points(group=_GROUP):
        try:
            import_module(offer.module)
        except BadModule as error:
            package = offer.dist.name if offer.dist else offer.name
            warn(f"what the package {package} adds is left out: {error}")


def show_cause(error: Exception) -> None:
    """Print where a user's code raised the cause of an error, if it did."""
    if error.__cause__ and (where := users_traceback(error.__cause__)):
        print(escape(where), file=sys.stderr)


@contextlib.contextmanager
def mistakes_refused() -> Iterator[None]:
    """End the program with the sentence of a mistake that the body raises, after its cause."""
    try:
        yield
    except (UserMistake, BadEnvironment) as error:
        show_cause(error)
        refuse(str(error))


def import_module(module: str, after: str = "") -> ModuleType:
    """Import and return a module; raise BadModule if that fails.

    `after` is what follows the module's name in its flag; an error that suggests another name
    repeats it.
    """
    with _explained(module, after):
        return importlib.import_module(module)


def check_exists(module: str) -> None:
    """Import a module's parents, but not itself; raise BadModule if there is no such module."""
    with _explained(module):
        if not exists(module):
            raise ModuleNotFoundError(name=module)


@contextlib.contextmanager
def _explained(module: str, after: str = "") -> Iterator[None]:
    """Raise BadModule for what the search or import of a module raises."""
    search_folders()
    try:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ModuleNotFoundError(name=module)
        yield
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            _refuse_missing(missing, module, after)
        path = path_of(module)
        found = f" was found at {path}, but" if path else ""
        raise BadModule(
            f"{module}{found} cannot be imported, since it raises {describe_error(error)}"
        ) from error


def exists(module: str) -> bool:
    """Return whether there is a module of this name, whose parent packages were found before."""
    return importlib.util.find_spec(module) is not None


def path_of(module: str) -> str:
    """Return the file or folder of a module, or an empty string; its parents are imported."""
    search_folders()
    with contextlib.suppress(Exception, SystemExit):
        spec = importlib.util.find_spec(module)
        if spec and spec.has_location and spec.origin:
            return spec.origin
        if spec and spec.submodule_search_locations:
            return next(iter(spec.submodule_search_locations), "")
    return ""


def search_folders() -> None:
    """Let imports search the current folder first and ours last, unless they are searched."""
    with contextlib.suppress(OSError):  # the folder was removed
        here = Path.cwd()
        if not any(Path(entry).absolute() == here for entry in sys.path):
            sys.path.insert(0, str(here))
    if SHIPPED.exists() and str(SHIPPED) not in sys.path:
        sys.path.append(str(SHIPPED))


def _refuse_missing(missing: str, module: str, after: str) -> NoReturn:
    """Raise BadModule: `missing`, a parent or the module itself, is in none of the folders."""
    package, _, part = missing.rpartition(".")
    if package and (path := path_of(package)):
        raise BadModule(f"{package} was found at {path}, but it has no module {part}")
    searched = _searched_folders()
    names = [found.name for found in pkgutil.iter_modules([str(folder) for folder in searched])]
    close = difflib.get_close_matches(missing, names, n=1, cutoff=0.7)
    rest = module.removeprefix(missing) + after
    hint = f"; did you mean {close[0]}{rest}?" if close else ""
    folders = ", ".join(f"{folder} ({kind})" for folder, kind in searched.items())
    raise BadModule(f"no module named {missing!r} was found in {folders}{hint}")


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


def refuse_foreign() -> None:
    """Refuse if imports find another `nets` or `launcher` than this project's.

    The current folder counts: users' modules are imported from it, and it is searched first then.
    """
    for name in _OURS:
        if found := _find_foreign(name):
            refuse(f"{found} {_problem(name, found)}", ForeignPackage)


def _find_foreign(name: str) -> Path | None:
    """Return the file or folder that `import name` finds; None if it is this project's."""
    if name in sys.modules:
        spec = sys.modules[name].__spec__
    else:
        spec = PathFinder.find_spec(name, ["", *sys.path])
    if spec is None:  # only the finder of an editable installation knows where this project is
        return None
    if not spec.origin:  # a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations or ())))
    path = Path(spec.origin).resolve()
    if path == _ROOT / name / "__init__.py" and "impala_mm" in path.read_text():
        return None
    return path.parent if path.name == "__init__.py" else path


def _problem(name: str, found: Path) -> str:
    """Return what is wrong with the package that was found, and the remedy."""
    if found == _ROOT / name:
        return (
            f"was overwritten by another package that has the name of impala_mm's own package "
            f"{name}: uninstall that one, then install impala_mm again"
        )
    elsewhere = f"remove {found.parent} from PYTHONPATH and sys.path"
    if found.parent == Path.cwd():
        elsewhere = "start in another folder"
    return f"hides impala_mm's own package {name}, in {_ROOT}: rename it, or {elsewhere}"
