"""Checkpoints: each a folder that appears whole or not at all, and is checked before it is used.

    LOGDIR/checkpoints/
        0000012000/          the updates made
            variables.*      trained and carried variables, as tf.train.Checkpoint writes them
            about.json       `CheckpointInfo`, and the size and SHA-256 of each of the above
        saving/              what is being written; it gets its name when all of it is on the disk

`learner.monitor` saves, and resumes from the newest that is whole; `policy` reads what actors need
of one.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.data.variables import Variables
from impala_mm.runtime.log import Say

MILESTONES = 10  # in all the frames of a run


class CheckpointInfo(NamedTuple):
    """What a checkpoint says of itself."""

    learners: int
    settings: dict[str, Any]  # every flag of the run
    made_of: dict[str, Any]  # what nobody may change who goes on from it, by flag
    versions: dict[str, str]  # of Python and packages
    updates: int = 0
    steps: int = 0  # of all learners
    frames: float = 0.0
    seconds: float = 0.0  # of training
    episode_return: float | None = None  # mean of the last 100 whole games, if there were as many
    milestone: bool = False  # the first after another tenth of the run's frames; it is kept


class Damaged(Exception):
    """It is not what was written; says in what."""


class Mismatch(Exception):
    """It is of something else; says of what."""


class Missing(Exception):
    """There is no checkpoint where one is due; says so."""


class Unwritable(Exception):
    """The disk would not take it; says why."""


class Checkpoints:
    """Those of one run."""

    def __init__(self, logdir: Path, variables: Variables, keep: int):
        """`keep`: how many of the newest are kept; the best and milestones are besides."""
        self._folder, self._keep = logdir / "checkpoints", keep
        self._variables = variables
        self._copies: dict[str, list[tf.Variable]] = {}  # by name

    def snapshot(self) -> None:
        """Copies the variables as they are now: `save` writes this while training goes on."""
        with tf.device("/CPU:0"):
            for kind, live in _variables_by_kind(self._variables).items():
                if kind not in self._copies:
                    copies = [tf.Variable(v.read_value(), trainable=False) for v in live]
                    self._copies[kind] = copies
                for variable, copy in zip(live, self._copies[kind], strict=True):
                    copy.assign(variable.read_value())

    def save(self, about: CheckpointInfo) -> Path:
        """Writes the snapshot; Unwritable, and nothing left, where the disk will not."""
        final, work = self._folder / f"{about.updates:010d}", self._folder / "saving"
        shutil.rmtree(work, ignore_errors=True)
        try:
            if final.exists():
                return final
            work.mkdir(parents=True)
            tf.train.Checkpoint(**self._copies).write(str(work / "variables"))
            files = {path.name: _fingerprint(path) for path in sorted(work.iterdir())}
            (work / "about.json").write_text(json.dumps(about._asdict() | {"files": files}))
            for path in [*work.iterdir(), work]:  # on the disk before it gets its name
                _flush_to_disk(path)
            work.rename(final)
            _flush_to_disk(self._folder)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(work, ignore_errors=True)
            # TensorFlow's are "{{node ...}} path; the reason [Op:...]".
            raise Unwritable(str(error).split(" [Op:")[0].split("; ")[-1]) from None
        self._prune()
        return final

    def restore(self, say: Say, check: Callable[[CheckpointInfo], None]) -> CheckpointInfo | None:
        """Loads the newest that is whole into the variables; None where there is none at all.

        Damaged ones are said, and put aside once one is found that is whole. `check` raises
        Mismatch where that is not this run's. Raises Damaged if all are.
        """
        damaged: list[Path] = []
        for path in reversed(all_in(self._folder)):
            try:
                about = verify(path)
            except Damaged as error:
                say(f"{error}; goes on from the one before, if there is one")
                damaged.append(path)
                continue
            check(about)
            load(path, named(self._variables))
            for each in damaged:  # their numbers come again
                _put_aside(each)
            return about
        if damaged:
            raise Damaged(f"no checkpoint in {self._folder} is whole: give another --logdir")
        return None

    def _prune(self) -> None:
        """Of those that are neither new, nor best, nor milestones."""
        old = all_in(self._folder)[: -self._keep]
        best = best_of(all_in(self._folder))
        for path in old:
            about = _read(path)
            if path != best and not (about and about.milestone):
                shutil.rmtree(path, ignore_errors=True)


def named(variables: Variables, weights: bool = False) -> dict[str, tf.Variable]:
    """All of an algorithm's variables by their names in a checkpoint, or only what acts or learns.

    Those are the trained and the acting ones, without the optimizer's slots.
    """
    kinds = _variables_by_kind(variables)
    if weights:
        del kinds["carried"]
    return {f"{kind}/{i}": v for kind, group in kinds.items() for i, v in enumerate(group)}


def _variables_by_kind(variables: Variables) -> dict[str, list[tf.Variable]]:
    """A normaliser's place must not depend on how many slots an optimizer has."""
    acting = {id(variable) for variable in variables.acting}
    return {
        "trained": variables.trained,
        "acting": [v for v in variables.carried if id(v) in acting],
        "carried": [v for v in variables.carried if id(v) not in acting],
    }


def load(path: Path, by_name: dict[str, tf.Variable]) -> None:
    """Assigns what is written under these names; raises Mismatch before any if one differs."""
    try:
        reader = tf.train.load_checkpoint(str(path / "variables"))
        shapes = reader.get_variable_to_shape_map()
        values = []
        for name, variable in by_name.items():
            key = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
            here, there = variable.shape.as_list(), shapes.get(key)
            if here != there:
                what = "has none" if there is None else f"has it of shape {there}"
                raise Mismatch(f"{variable.name} is of shape {here}, and {path} {what}")
            values.append(reader.get_tensor(key))
        for variable, value in zip(by_name.values(), values, strict=True):
            variable.assign(value)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise Mismatch(f"{path} cannot be read: {str(error).splitlines()[0][:200]}") from None


def verify(path: Path) -> CheckpointInfo:
    """What it says of itself, if every file is as it was written; raises Damaged."""
    about = _read(path)
    if about is None:
        raise Damaged(f"{path} has no about.json that can be read")
    files = json.loads((path / "about.json").read_text())["files"]
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
    """The checkpoint at this path, or of the run there: its newest, or best, that is whole."""
    path = Path(path)
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
    if reasons:
        raise Damaged(f"no checkpoint of {path} is whole: {reasons[0]}")
    what = "holds no checkpoint yet" if (path / "metrics.jsonl").exists() else "is no run's folder"
    raise Missing(f"{path} {what if path.is_dir() else 'does not exist'}")


def all_in(folder: Path) -> list[Path]:
    """Oldest first; none that a user has copied there under a name of his own."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


def best_of(paths: Sequence[Path]) -> Path | None:
    """That of the highest mean return, the newest of several; None where none is known."""
    known = [path for path in paths if _mean_return(path)[0] > -math.inf]
    return max(known, key=_mean_return, default=None)


def _mean_return(path: Path) -> tuple[float, str]:
    about = _read(path)
    known = about.episode_return if about else None
    return (-math.inf if known is None else known, path.name)


def _read(path: Path) -> CheckpointInfo | None:
    """What it says of itself, unchecked; None where that cannot be read."""
    try:
        content = json.loads((path / "about.json").read_text())
        return CheckpointInfo(**{name: content[name] for name in CheckpointInfo._fields})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _put_aside(path: Path) -> None:
    """Out of the way of those to come, under a name that is free."""
    for number in itertools.count(1):
        aside = path.with_name(f"damaged-{path.name}" + (f"-{number}" if number > 1 else ""))
        if not aside.exists():
            break
    with contextlib.suppress(OSError):
        path.rename(aside)


def _fingerprint(path: Path) -> list[Any]:
    """[bytes, SHA-256]."""
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _flush_to_disk(path: Path) -> None:
    """What was written to this file or folder is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
