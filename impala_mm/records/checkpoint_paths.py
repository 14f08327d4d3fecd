"""The paths of checkpoints: which folders of a run hold one.

This module does not load TensorFlow, so that a missing checkpoint is found before a run's folder
is made. `checkpoint` reads and writes what is in these folders.
"""

from pathlib import Path


def all_in(folder: Path) -> list[Path]:
    """Return a folder's checkpoints, oldest first, without copies that the user has renamed."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


def why_missing(path: Path) -> str:
    """Return why a path holds neither a checkpoint nor a run with one; empty if it holds one."""
    if (path / "about.json").exists() or all_in(path / "checkpoints"):
        return ""
    if not path.is_dir():
        return f"{path} does not exist"
    has_run = (path / "metrics.jsonl").exists()
    return f"{path} {'holds no checkpoint yet' if has_run else 'is not the folder of a run'}"
