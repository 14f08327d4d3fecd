"""Checkpoints: each a folder of its own that appears whole or not at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.algorithms import Variables

_KEPT = 3


class Mismatch(Exception):
    """The checkpoint is of something else; says what."""


class Unwritable(Exception):
    """The disk would not take it; says why."""


class Checkpoints:
    """Those of one run: LOGDIR/checkpoints/<updates>/."""

    def __init__(self, logdir: Path, variables: Variables):
        self._folder = logdir / "checkpoints"
        self._checkpoint = tf.train.Checkpoint(trained=variables.trained, carried=variables.carried)

    def save(self, progress: dict[str, Any]) -> Path:
        """Writes variables and progress; Unwritable, and nothing left, where the disk will not."""
        final = self._folder / f"{progress['updates']:010d}"
        if final.exists():
            return final
        work = self._folder / "saving"
        shutil.rmtree(work, ignore_errors=True)
        try:
            self._write(work, progress)
            work.rename(final)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(work, ignore_errors=True)
            # TensorFlow's are "{{node ...}} path; the reason [Op:...]".
            raise Unwritable(str(error).split(" [Op:")[0].split("; ")[-1]) from None
        for old in self._all()[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def _write(self, work: Path, progress: dict[str, Any]) -> None:
        work.mkdir(parents=True)
        self._checkpoint.write(str(work / "variables"))
        (work / "progress.json").write_text(json.dumps(progress))
        for path in work.iterdir():  # on the disk before it gets its name
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def restore(self) -> dict[str, Any] | None:
        """Loads the newest checkpoint; its progress, or None where there is none."""
        found = self._all()
        if not found:
            return None
        newest = found[-1]
        try:
            status = self._checkpoint.read(str(newest / "variables"))
            status.assert_existing_objects_matched()
            return json.loads((newest / "progress.json").read_text())
        except (OSError, ValueError, AssertionError, tf.errors.OpError) as error:
            raise Mismatch(
                f"{newest} does not fit this network or algorithm "
                f"({str(error).splitlines()[0][:200]})"
            ) from None

    def _all(self) -> list[Path]:
        """Oldest first."""
        return sorted(path for path in self._folder.glob("[0-9]*") if path.is_dir())
