"""The checkpoints of a run: written while it trains, few of them kept, read when it resumes."""

import contextlib
import itertools
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from impala_mm.data.variables import Variables
from impala_mm.records import checkpoint, saved_variables
from impala_mm.records.checkpoint import (
    CheckpointInfo,
    Damaged,
    all_in,
    best_of,
    read,
    verify,
)
from impala_mm.runtime.log import Say


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self,
        logdir: Path,
        variables: Variables,
        keep: int,
        max_bytes: float = math.inf,
        say: Say = print,
    ):
        """Keep the newest `keep` checkpoints, besides the best one and the milestones.

        Fewer are kept if they take more than `max_bytes`.
        """
        self._keep = keep
        self.move(logdir)
        self._max_bytes, self._say = max_bytes, say
        self._reported = set[str]()  # kinds of checkpoints whose removal was reported
        self._variables = variables
        self._copies: dict[str, tf.Variable] = {}  # by keys, see `saved_variables.named`

    def move(self, logdir: Path) -> None:
        """Save to the run's folder `logdir` from now on."""
        self._folder = logdir / "checkpoints"

    def snapshot(self) -> None:
        """Copy the variables, so that `save` can write them while training continues."""
        with tf.device("/CPU:0"):
            for key, variable in saved_variables.named(self._variables).items():
                if key not in self._copies:
                    self._copies[key] = tf.Variable(variable.read_value(), trainable=False)
                self._copies[key].assign(variable.read_value())

    def save(self, about: CheckpointInfo) -> Path:
        """Write the snapshot and return its folder; raises Unwritable and leaves nothing behind."""
        final, work = self._folder / f"{about.updates:010d}", self._folder / "saving"
        if os.path.exists(final):  # not if the disk refuses to say it, as `writing` will find out
            return final
        with saved_variables.writing(work, final, about._asdict()):
            self._folder.mkdir(exist_ok=True)  # not its parent, which would be somebody else's
            work.mkdir()
            checkpoint.refuse_full_disk(work, self._newest_size())
            saved_variables.write(work, self._copies)
        self._prune()
        return final

    def change_newest(self, **numbers: float) -> None:
        """Write other numbers into the description of the newest checkpoint."""
        for path in all_in(self._folder)[-1:]:
            with contextlib.suppress(OSError, ValueError):
                checkpoint.change(path, numbers)

    def newest(self) -> list[int]:
        """Return the updates of the newest checkpoints, as many as are kept of them."""
        return [int(path.name) for path in all_in(self._folder)[-self._keep :]]

    def _newest_size(self) -> int:
        """Return the bytes of the newest checkpoint; 0 if there is none."""
        return sum(checkpoint.size(path) for path in all_in(self._folder)[-1:])

    def restore(self, say: Say, check: Callable[[CheckpointInfo], None]) -> CheckpointInfo | None:
        """Load the newest intact checkpoint into the variables; return None if there is none.

        Damaged ones are logged, and renamed once an intact one is found. `check` raises Mismatch if
        that one does not fit this run. Raises Damaged if all are damaged.
        """
        damaged: list[Path] = []
        for path in reversed(all_in(self._folder)):
            try:
                about = verify(path)
            except Damaged as error:
                say(f"{error}; trying the previous checkpoint")
                damaged.append(path)
                continue
            check(about)
            saved_variables.load(path, saved_variables.named(self._variables))
            for each in damaged:  # since their names will be used again
                _put_aside(each)
            return about
        if damaged:
            raise Damaged(f"no checkpoint in {self._folder} is intact: give another --logdir")
        return None

    def _prune(self) -> None:
        """Delete checkpoints but for the newest ones, the best one, and milestones.

        If these take more than `max_bytes`, delete the oldest of them as well, milestones first,
        but never the newest and the best one.
        """
        paths = all_in(self._folder)
        best, newest = best_of(paths), paths[-self._keep :]
        for path in paths[: -self._keep]:
            about = read(path)
            if path != best and not (about and about.milestone):
                shutil.rmtree(path, ignore_errors=True)
        sizes = {path: checkpoint.size(path) for path in all_in(self._folder)}
        removable = [path for path in sizes if path not in {paths[-1], best}]
        removable.sort(key=lambda path: (path in newest, path.name))
        excess = sum(sizes.values()) - self._max_bytes
        while excess > 0 and removable:
            path = removable.pop(0)
            shutil.rmtree(path, ignore_errors=True)
            excess -= sizes[path]
            self._report_removal(path, path in newest)

    def _report_removal(self, path: Path, is_new: bool) -> None:
        """Print, once for each kind, that a checkpoint was removed for its size."""
        kind = "checkpoint" if is_new else "milestone"
        if kind not in self._reported:
            self._reported.add(kind)
            self._say(
                f"the {kind} of update {int(path.name)} was removed, because checkpoints took more "
                f"than --checkpoint_max_gb={self._max_bytes / 1e9:g}; from now on this happens "
                f"without a message"
            )


def _put_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that a new one can take its name."""
    for number in itertools.count(1):
        aside = path.with_name(f"damaged-{path.name}" + (f"-{number}" if number > 1 else ""))
        if not aside.exists():
            break
    with contextlib.suppress(OSError):
        path.rename(aside)
