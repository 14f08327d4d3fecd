"""Refusal of other packages that have the names of this project's packages `nets` and `launcher`.

Both programs, and the library's functions, call it before they import either.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from impala_mm.config.errors import ForeignPackage
from impala_mm.config.flags import refuse

_NAMES = ("nets", "launcher")
_ROOT = Path(__file__).resolve().parents[2]


def refuse_foreign() -> None:
    """Refuse if imports find another `nets` or `launcher` than this project's.

    The current folder counts: users' modules are imported from it, and it is searched first then.
    """
    for name in _NAMES:
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
