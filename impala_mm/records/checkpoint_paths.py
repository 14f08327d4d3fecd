"""The paths of checkpoints: which folders hold one, and the policies that come with this package.

`checkpoint` reads what is in these folders.
"""

import contextlib
import difflib
from pathlib import Path

_SHIPPED = Path(__file__).resolve().parents[1] / "policies"


def shipped_names() -> list[str]:
    """Return the names of the policies that come with this package."""
    return sorted(path.parent.name for path in _SHIPPED.glob("*/about.json"))


def resolve(given: str | Path) -> Path:
    """Return the folder that a user means: a path, or else the name of a policy of this package.

    In an export, it is the folder with the weights.
    """
    with contextlib.suppress(OSError):  # `why_missing` says what is wrong with it
        if not Path(given).exists() and str(given) in shipped_names():
            return _SHIPPED / given
        exported = Path(given) / "variables"
        if (exported / "about.json").exists():
            return exported
    return Path(given)


def all_in(folder: Path) -> list[Path]:
    """Return a folder's checkpoints, oldest first, without copies that the user has renamed."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


def why_missing(path: Path) -> str:
    """Return why a path holds neither a checkpoint nor a run with one; empty if it holds one."""
    try:
        return _why_missing(path)
    except OSError as error:  # such as a folder that this user may not enter
        return f"{path}: {error.strerror}"


def _why_missing(path: Path) -> str:
    if (path / "about.json").exists() or all_in(path / "checkpoints"):
        return ""
    if not path.is_dir():
        return f"{path} {'is a file' if path.exists() else f'does not exist{_hint(path)}'}"
    has_run = (path / "metrics.jsonl").exists()
    return f"{path} {'holds no checkpoint yet' if has_run else 'is not the folder of a run'}"


def _hint(path: Path) -> str:
    """Return the policies that may be meant by a path that does not exist; usually none."""
    names = shipped_names()
    if len(path.parts) > 1 or not names:
        return ""
    near = difflib.get_close_matches(str(path), names, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{meant} (policies of this package: {', '.join(names)})"
