"""The formats of exports, and their folder.

It appears complete or not at all, and replaces an earlier one at once. This module does not
load TensorFlow, so that a wrong folder is refused at once.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from impala_mm.config.errors import UserMistake
from impala_mm.config.registry import Registry

# A function (policy, folder) for each, which writes a `PolicyCore` to an empty folder.
EXPORTS: Registry[Callable[[Any, Path], None]] = Registry(
    "format of exports",
    {
        "saved_model": "impala_mm.policy.saved_model:write_saved_model",
        "numpy": "impala_mm.policy.numpy_export:write_numpy",
        "onnx": "impala_mm.policy.onnx_export:write_onnx",
    },
)
register = EXPORTS.register

# The files of exports; a folder that holds anything else is never replaced.
_MAIN = {"saved_model.pb", "policy.npz", "policy.onnx"}
_FILES = _MAIN | {"fingerprint.pb", "variables", "assets", "policy.py", "__pycache__"}
_OURS = {"README.txt", "example.py", "signature.json"}
BUILT_IN = tuple(EXPORTS.names)


class CannotExport(UserMistake):
    """A policy cannot be written in a format; the message says why."""


@contextlib.contextmanager
def replace(target: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `target` at the end, or is deleted on an error."""
    work = target.with_name(f".{target.name}.writing")
    before = target.with_name(f".{target.name}.before")
    target.parent.mkdir(parents=True, exist_ok=True)

    def tidy() -> None:
        """Keep the folder from before, if no new one has taken its place, and nothing else."""
        _remove(work)
        if before.exists() and not target.exists():
            before.rename(target)
        _remove(before)

    tidy()  # a process may have been killed, also between the last two renames
    try:
        work.mkdir()
        yield work
        if target.exists():
            target.rename(before)
        work.rename(target)
    finally:
        tidy()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def why_not_replaceable(target: Path) -> str:
    """Return why an export cannot replace this folder; empty if it can."""
    if not target.exists():
        return ""
    if not target.is_dir():
        return "it is a file; name a folder"
    held = {path.name for path in target.iterdir()}
    other = sorted(held - _FILES - _OURS)
    if other or (held and not held & _MAIN):
        what = (other or sorted(held))[0]
        return f"it holds {what}, which no export writes; name a new folder or an earlier export"
    if held and not held & _OURS:
        return "it holds a SavedModel of another program; name a new folder or an earlier export"
    return ""
