"""The files that a chaos run leaves, as `checker` reads them.

    FOLDER/events.jsonl            what `run` did to the run: see `Event`
    FOLDER/left.txt                what was left on the hosts at the end, one thing per line
    FOLDER/HOST/trained/*.jsonl    what each learner process on a host trained on: see `recording`
    FOLDER/frontends.log           what the frontends printed
    FOLDER/HOST/run/               the run's folder on that host: metrics.jsonl, checkpoints/, logs

Lines that a killed process or a full disk has cut off are left out.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# The first number of the variable of `recording`, by which it is found in a checkpoint.
MARK = 0x63686169


class Event(NamedTuple):
    """A time in which the run was disturbed, or one in which it was left alone to be measured."""

    words: str
    begin: float  # time.time()
    end: float
    whole: float  # when the run must be undisturbed again at the latest, at least `end`
    calm: bool = False  # nothing was done: the rate of this time is what others are compared with


class Update(NamedTuple):
    """An update as one learner process recorded it."""

    time: float
    rank: int
    learners: int
    update: int  # 1, 2...
    before: int  # the chain before this update; 0: none was made before it
    after: int
    columns: Sequence[dict[str, Any]]

    @property
    def steps(self) -> int:
        """The number of steps in this learner's batch."""
        return sum(column["steps"] for column in self.columns)


class Saved(NamedTuple):
    """An intact checkpoint."""

    path: Path
    updates: int
    steps: int
    frames: float
    recorded: int  # the number of updates by the recorded variable
    chain: int


class Broken(Exception):
    """A checkpoint that cannot be loaded; the message says why."""


def read_events(folder: Path) -> list[Event]:
    """Return what was done to the run, in order."""
    return [Event(**line) for line in _lines(folder / "events.jsonl")]


def read_sessions(folder: Path) -> list[list[Update]]:
    """Return for each learner process of any host what it recorded."""
    paths = sorted(folder.glob("*/trained/*.jsonl"))
    sessions = [
        [Update(**line) for line in _lines(path) if "update" in line]  # else cut out of a line
        for path in paths
    ]
    return [updates for updates in sessions if updates]


def read_metrics(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of metrics.jsonl by host."""
    paths = sorted(folder.glob("*/run/metrics.jsonl"))
    return {path.parents[1].name: list(_lines(path)) for path in paths}


def read_logs(folder: Path) -> dict[Path, str]:
    """Return what frontends and processes printed; the laptop has the logs of all hosts."""
    paths = [folder / "frontends.log", *sorted(folder.glob("*/run/*.log"))]
    return {path: path.read_text(errors="replace") for path in paths if path.exists()}


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return all folders of checkpoints on any host that have got their final names."""
    return sorted(
        p for p in folder.glob("*/run/checkpoints/*") if p.is_dir() and p.name != "saving"
    )


def load(path: Path) -> Saved:
    """Read every file and every variable of a checkpoint; raises Broken."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np  # noqa: PLC0415 - what reads no checkpoint need not load TensorFlow
    import tensorflow as tf  # noqa: PLC0415

    try:
        about = json.loads((path / "about.json").read_text())
        for name, (size, digest) in about["files"].items():
            content = (path / name).read_bytes()
            if [len(content), hashlib.sha256(content).hexdigest()] != [size, digest]:
                raise Broken(f"{name} is not what was written")
        reader = tf.train.load_checkpoint(str(path / "variables"))
        names = [n for n in reader.get_variable_to_shape_map() if "VARIABLE_VALUE" in n]
        values = [reader.get_tensor(name) for name in names]
    except (OSError, ValueError, KeyError, TypeError, tf.errors.OpError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from None
    if not all(np.isfinite(value).all() for value in values if value.dtype.kind == "f"):
        raise Broken("a variable is not finite")
    marked = [v for v in values if v.shape == (3,) and v.dtype == np.int64 and v[0] == MARK]
    if len(marked) != 1:
        raise Broken("it does not hold the variable of the recording")
    _, recorded, chain = map(int, marked[0])
    return Saved(path, about["updates"], about["steps"], about["frames"], recorded, chain)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's JSON objects, also one that follows a line that was cut off."""
    for line in path.read_text(errors="replace").splitlines():
        for text in (line, line[line.rfind('{"') :]):
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found
            break
