"""The files of environments from Python that belong to a checkpoint, wherever its run was moved."""

import re
from pathlib import Path
from typing import Any

from impala_mm.config.environment_flags import FILE_SUFFIX

_PATH = re.compile(rf"[^,\"]+{re.escape(FILE_SUFFIX)}")


def of_checkpoint(path: Path) -> list[Path]:
    """Return the files beside a checkpoint's own, or in the folder of its run."""
    folder = path.resolve()
    if folder.parent.name == "checkpoints":
        folder = folder.parents[1]
    return sorted(folder.glob(f"*{FILE_SUFFIX}"))


def relocated(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a checkpoint's settings in which the files are its own.

    At the recorded path may be those of another run, if this one was moved.
    """
    here = {each.name: str(each) for each in of_checkpoint(path)}

    def moved(found: re.Match) -> str:
        return here.get(Path(found[0]).name, found[0])

    named = {
        name: _PATH.sub(moved, settings[name])
        for name in ("level_name", "env_wrappers")
        if isinstance(settings.get(name), str)
    }
    return settings | named


def without_folders(text: str) -> str:
    """Return a text in which such files are named without their folders, as moving leaves them."""
    return _PATH.sub(lambda found: Path(found[0]).name, text)
