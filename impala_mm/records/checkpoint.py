"""Checkpoints: each a folder that appears complete or not at all, and is verified before use.

    LOGDIR/checkpoints/
        0000012000/          named by the number of updates made
            variables.*      trained and carried variables, as tf.train.Checkpoint writes them
            about.json       `CheckpointInfo`, and the size and SHA-256 of each of these files
        saving/              a checkpoint being written; renamed once all of it is on the disk

`learner.monitor` saves checkpoints and resumes from the newest intact one; `policy` reads the
weights of one.
"""

import contextlib
import hashlib
import itertools
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.data.variables import Variables
from impala_mm.records.checkpoint_paths import all_in, why_missing
from impala_mm.runtime.log import Say
from impala_mm.runtime.strict_json import from_json, to_json

MILESTONES = 10  # milestone checkpoints over the total frames of a run


class CheckpointInfo(NamedTuple):
    """The description of a checkpoint, from its about.json."""

    learners: int
    settings: dict[str, Any]  # all flags of the run
    made_of: dict[str, Any]  # by flag, the properties that a run resumed from it must share
    versions: dict[str, str]  # versions of Python and packages
    updates: int = 0
    steps: int = 0  # environment steps of all learners
    frames: float = 0.0  # environment frames of all learners
    seconds: float = 0.0  # seconds of training
    # Those since the first unroll of each start; None in checkpoints of earlier versions.
    counted_seconds: float | None = None
    episode_return: float | None = None  # mean over the last 100 complete games; None before 100
    milestone: bool = False  # the first one after another tenth of the run's frames; it is kept

    @property
    def limited_seconds(self) -> float:
        """The seconds that count towards --max_seconds."""
        return self.seconds if self.counted_seconds is None else self.counted_seconds


class Damaged(Exception):
    """A checkpoint's files differ from what was written; the message says how."""


class Mismatch(Exception):
    """A checkpoint does not fit the network or run; the message says why."""


class Missing(Exception):
    """A path holds no checkpoint; the message says what is there."""


class Unwritable(Exception):
    """A checkpoint could not be written to the disk; the message says why."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, logdir: Path, variables: Variables, keep: int):
        """Keep the newest `keep` checkpoints, besides the best one and the milestones."""
        self._folder, self._keep = logdir / "checkpoints", keep
        self._variables = variables
        self._copies: dict[str, list[tf.Variable]] = {}  # by kind, see `_variables_by_kind`

    def snapshot(self) -> None:
        """Copy the variables, so that `save` can write them while training continues."""
        with tf.device("/CPU:0"):
            for kind, live in _variables_by_kind(self._variables).items():
                if kind not in self._copies:
                    copies = [tf.Variable(v.read_value(), trainable=False) for v in live]
                    self._copies[kind] = copies
                for variable, copy in zip(live, self._copies[kind], strict=True):
                    copy.assign(variable.read_value())

    def save(self, about: CheckpointInfo) -> Path:
        """Write the snapshot and return its folder; raises Unwritable and leaves nothing behind."""
        final, work = self._folder / f"{about.updates:010d}", self._folder / "saving"
        shutil.rmtree(work, ignore_errors=True)
        try:
            if final.exists():
                return final
            work.mkdir(parents=True)
            tf.train.Checkpoint(**self._copies).write(str(work / "variables"))
            files = {path.name: _fingerprint(path) for path in sorted(work.iterdir())}
            (work / "about.json").write_text(to_json(about._asdict() | {"files": files}))
            for path in [*work.iterdir(), work]:  # on the disk before the folder gets its name
                _flush_to_disk(path)
            work.rename(final)
            _flush_to_disk(self._folder)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(work, ignore_errors=True)
            # TensorFlow's messages have the form "{{node ...}} path; the reason [Op:...]".
            raise Unwritable(str(error).split(" [Op:")[0].split("; ")[-1]) from None
        self._prune()
        return final

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
            load(path, named(self._variables))
            for each in damaged:  # since their names will be used again
                _put_aside(each)
            return about
        if damaged:
            raise Damaged(f"no checkpoint in {self._folder} is intact: give another --logdir")
        return None

    def _prune(self) -> None:
        """Delete checkpoints but for the newest ones, the best one, and milestones."""
        old = all_in(self._folder)[: -self._keep]
        best = best_of(all_in(self._folder))
        for path in old:
            about = _read(path)
            if path != best and not (about and about.milestone):
                shutil.rmtree(path, ignore_errors=True)


def named(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables that a checkpoint holds, by their names in it."""
    return _named(variables, *_variables_by_kind(variables))


def named_weights(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables with which --mode=train_from starts, by their names in a checkpoint.

    These are all but the optimizer's slots and other carried variables.
    """
    return _named(variables, "trained", "acting", "weights")


def named_for_acting(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables that choosing actions and `judge` need, by their names in a checkpoint.

    These are the trained ones, and the carried ones that actors receive, such as normalisers.
    """
    return _named(variables, "trained", "acting")


def _named(variables: Variables, *kinds: str) -> dict[str, tf.Variable]:
    by_kind = _variables_by_kind(variables)
    return {f"{kind}/{i}": v for kind in kinds for i, v in enumerate(by_kind[kind])}


def _variables_by_kind(variables: Variables) -> dict[str, list[tf.Variable]]:
    """Return the variables as trained, acting, weights and other carried ones.

    Acting variables such as a normaliser's, and weights such as those of a target network, are
    kinds of their own, so that their names do not depend on how many slots the optimizer has.
    """
    acting = {id(variable) for variable in variables.acting}
    weights = {id(variable) for variable in variables.weights or ()} - acting
    return {
        "trained": variables.trained,
        "acting": [v for v in variables.carried if id(v) in acting],
        "weights": [v for v in variables.carried if id(v) in weights],
        "carried": [v for v in variables.carried if id(v) not in acting | weights],
    }


def load(path: Path, by_name: dict[str, tf.Variable]) -> None:
    """Assign a checkpoint's values to variables; raise Mismatch, and assign none, if one fails."""
    try:
        reader = tf.train.load_checkpoint(str(path / "variables"))
        shapes = reader.get_variable_to_shape_map()
        values = []
        for name, variable in by_name.items():
            key = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
            here, there = variable.shape.as_list(), shapes.get(key)
            if here != there:
                what = "lacks it" if there is None else f"holds shape {there}"
                raise Mismatch(f"{variable.name} has shape {here}, but {path} {what}")
            values.append(reader.get_tensor(key))
        for variable, value in zip(by_name.values(), values, strict=True):
            variable.assign(value)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise Mismatch(f"{path} cannot be read: {str(error).splitlines()[0][:200]}") from None


def verify(path: Path) -> CheckpointInfo:
    """Return a checkpoint's description if all its files are intact; raises Damaged otherwise."""
    about = _read(path)
    if about is None:
        raise Damaged(f"{path} has no about.json that can be read")
    files = from_json((path / "about.json").read_text())["files"]
    for name, written in files.items():
        try:
            found = _fingerprint(path / name)
        except OSError as error:
            raise Damaged(f"{path / name} cannot be read: {error.strerror}") from None
        if found != written:
            what = "cut short" if found[0] < written[0] else "changed"
            raise Damaged(f"{path / name} is {what} since it was written")
    return about


def find(path: str | Path, best: bool = False) -> tuple[Path, CheckpointInfo]:
    """Return the checkpoint at this path, or the newest or best intact one of the run at it.

    Raises Damaged if none is intact, and Missing if there is none.
    """
    path = Path(path)
    if missing := why_missing(path):
        raise Missing(missing)
    if (path / "about.json").exists():
        return path, verify(path)
    found = all_in(path / "checkpoints")
    order = sorted(found, key=_mean_return) if best else found
    reasons = []
    for each in reversed(order):
        try:
            return each, verify(each)
        except Damaged as error:
            reasons.append(str(error))
    raise Damaged(f"no checkpoint of {path} is intact: {reasons[0]}")


def best_of(paths: Sequence[Path]) -> Path | None:
    """Return the newest checkpoint with the highest mean return; None if no return is known."""
    known = [path for path in paths if _mean_return(path)[0] > -math.inf]
    return max(known, key=_mean_return, default=None)


def _mean_return(path: Path) -> tuple[float, str]:
    """Return (mean return, folder name), by which checkpoints are sorted."""
    about = _read(path)
    known = about.episode_return if about else None
    return (-math.inf if known is None else known, path.name)


def _read(path: Path) -> CheckpointInfo | None:
    """Return a checkpoint's description without verifying it; None if it cannot be read."""
    try:
        content = from_json((path / "about.json").read_text())
        content.setdefault("counted_seconds", None)
        return CheckpointInfo(**{name: content[name] for name in CheckpointInfo._fields})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _put_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that a new one can take its name."""
    for number in itertools.count(1):
        aside = path.with_name(f"damaged-{path.name}" + (f"-{number}" if number > 1 else ""))
        if not aside.exists():
            break
    with contextlib.suppress(OSError):
        path.rename(aside)


def _fingerprint(path: Path) -> list[Any]:
    """Return a file's [size in bytes, SHA-256]."""
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _flush_to_disk(path: Path) -> None:
    """Wait until what was written to this file or folder is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
