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
    """Return a checkpoint's settings in which files that are gone are those that it has now."""
    here = {each.name: str(each) for each in of_checkpoint(path)}

    def moved(found: re.Match) -> str:
        return found[0] if Path(found[0]).exists() else here.get(Path(found[0]).name, found[0])

    named = {
        name: _PATH.sub(moved, settings[name])
        for name in ("level_name", "env_wrappers")
        if FILE_SUFFIX in str(settings.get(name))
    }
    return settings | named
