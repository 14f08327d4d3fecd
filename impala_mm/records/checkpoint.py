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
import itertools
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.config.errors import BadCheckpoint, ImpalaError
from impala_mm.config.messages import UserMistake
from impala_mm.data.variables import Variables
from impala_mm.records import durable_folder, environment_files
from impala_mm.records.checkpoint_paths import all_in, resolve, why_missing
from impala_mm.records.durable_folder import Damaged
from impala_mm.runtime.log import Say
from impala_mm.runtime.strict_json import from_json

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
    # By rank, the digest of each learner's own state, see `learner.own_state`; empty where it could
    # not be saved. () if learners have none.
    own_states: tuple[str, ...] = ()
    offline_updates: int = 0  # those of the updates that were made from recorded games

    @property
    def limited_seconds(self) -> float:
        """The seconds that count towards --max_seconds."""
        return self.seconds if self.counted_seconds is None else self.counted_seconds


class Mismatch(UserMistake, BadCheckpoint):
    """A checkpoint does not fit the network or run; the message says why."""


class Missing(UserMistake, BadCheckpoint):
    """A path holds no checkpoint; the message says what is there."""


class Unwritable(ImpalaError):
    """A checkpoint could not be written to the disk; the message says why."""


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
        self._folder, self._keep = logdir / "checkpoints", keep
        self._max_bytes, self._say = max_bytes, say
        self._reported = set[str]()  # kinds of checkpoints whose removal was reported
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
            durable_folder.refuse_full_disk(work, self._newest_size())
            tf.train.Checkpoint(**self._copies).write(str(work / "variables"))
            durable_folder.finish(work, final, about._asdict())
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(work, ignore_errors=True)
            raise Unwritable(why_unwritable(error)) from None
        self._prune()
        return final

    def describe_newest(self, **numbers: float) -> None:
        """Write other numbers into the description of the newest checkpoint."""
        for path in all_in(self._folder)[-1:]:
            with contextlib.suppress(OSError, ValueError):
                durable_folder.change(path, numbers)

    def newest(self) -> list[int]:
        """Return the updates of the newest checkpoints, as many as are kept of them."""
        return [int(path.name) for path in all_in(self._folder)[-self._keep :]]

    def _newest_size(self) -> int:
        """Return the bytes of the newest checkpoint; 0 if there is none."""
        return sum(durable_folder.size(path) for path in all_in(self._folder)[-1:])

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
        """Delete checkpoints but for the newest ones, the best one, and milestones.

        If these take more than `max_bytes`, delete the oldest of them as well, milestones first,
        but never the newest and the best one.
        """
        paths = all_in(self._folder)
        best, newest = best_of(paths), paths[-self._keep :]
        for path in paths[: -self._keep]:
            about = _read(path)
            if path != best and not (about and about.milestone):
                shutil.rmtree(path, ignore_errors=True)
        sizes = {path: durable_folder.size(path) for path in all_in(self._folder)}
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


def named(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables that a checkpoint holds, by their names in it."""
    return _named(variables, *_variables_by_kind(variables))


def named_weights(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables with which --mode=train_from starts, by their names in a checkpoint.

    These are all but the optimizer's slots and other carried variables.
    """
    return _named(variables, "trained", "acting", "weights")


def named_with_optimizer(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables of `named` that another run may start with: all but schedules."""
    anew = {id(v) for v in variables.schedules}
    return {name: v for name, v in named(variables).items() if id(v) not in anew}


def named_for_acting(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables that choosing actions and `judge` need, by their names in a checkpoint.

    These are the trained ones, and the carried ones that actors receive, such as normalisers.
    """
    return _named(variables, "trained", "acting")


def for_acting(variables: Variables) -> dict[str, list[tf.Variable]]:
    """Return the variables of `named_for_acting` by their kind."""
    by_kind = _variables_by_kind(variables)
    return {kind: by_kind[kind] for kind in ("trained", "acting")}


def _named(variables: Variables, *kinds: str) -> dict[str, tf.Variable]:
    by_kind = _variables_by_kind(variables)
    return {f"{kind}/{i}": v for kind in kinds for i, v in enumerate(by_kind[kind])}


def _variables_by_kind(variables: Variables) -> dict[str, list[tf.Variable]]:
    """Return the variables as trained, acting, weights and other carried ones.

    Acting variables such as a normaliser's, and weights such as those of a target network, are
    kinds of their own, so that their names do not depend on how many slots the optimizer has.
    """
    acting = {id(v) for v in variables.acting} - {id(v) for v in variables.schedules}
    weights = {id(variable) for variable in variables.weights or ()} - acting
    return {
        "trained": variables.trained,
        "acting": [v for v in variables.carried if id(v) in acting],
        "weights": [v for v in variables.carried if id(v) in weights],
        "carried": [v for v in variables.carried if id(v) not in acting | weights],
    }


def save_weights(
    variables: Variables, source: Path, folder: Path, about: CheckpointInfo, half: bool
) -> None:
    """Write a new checkpoint that holds only weights; raise Unwritable.

    Those that acting does not need, such as target networks, come from the checkpoint `source`.
    With `half`, the trained ones are float16.
    """
    by_kind = _variables_by_kind(variables)

    def halved(variable: tf.Variable) -> tf.Tensor:
        halves = half and variable.dtype == tf.float32
        return tf.cast(variable, tf.float16 if halves else variable.dtype)

    kept = {"trained": map(halved, by_kind["trained"]), "acting": by_kind["acting"]}
    copies = {kind: [tf.Variable(value) for value in values] for kind, values in kept.items()}
    reader = tf.train.load_checkpoint(str(source / "variables"))
    names = (_key(f"weights/{i}") for i in itertools.count())
    found = itertools.takewhile(reader.has_tensor, names)
    copies["weights"] = [tf.Variable(reader.get_tensor(name)) for name in found]
    work = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        for path in environment_files.of_checkpoint(source):
            shutil.copy(path, work)
        tf.train.Checkpoint(**copies).write(str(work / "variables"))
        durable_folder.finish(work, folder, about._asdict())
    except (OSError, tf.errors.OpError) as error:
        shutil.rmtree(work, ignore_errors=True)
        raise Unwritable(why_unwritable(error)) from None


def load(path: Path, by_name: dict[str, tf.Variable]) -> None:
    """Assign a checkpoint's values to variables; raise Mismatch before, if they do not fit."""
    if not by_name:
        return
    check_shapes(path, by_name)
    try:
        reader = tf.train.load_checkpoint(str(path / "variables"))
        for name, variable in by_name.items():  # one by one: no second copy of all values
            variable.assign(tf.cast(reader.get_tensor(_key(name)), variable.dtype))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise Mismatch(_describe_unreadable(path, error)) from None


def check_shapes(path: Path, by_name: dict[str, tf.Variable]) -> None:
    """Raise Mismatch if a variable is not in a checkpoint, or has another shape or type there."""
    if not by_name:
        return
    try:
        reader = tf.train.load_checkpoint(str(path / "variables"))
        shapes = reader.get_variable_to_shape_map()
        types = reader.get_variable_to_dtype_map()
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise Mismatch(_describe_unreadable(path, error)) from None
    for name, variable in by_name.items():
        here, there = variable.shape.as_list(), shapes.get(_key(name))
        if here != there:
            what = "lacks it" if there is None else f"holds shape {there}"
            raise Mismatch(f"{variable.name} has shape {here}, but {path} {what}")
        dtype = types[_key(name)]
        if variable.dtype != dtype and not (variable.dtype.is_floating and dtype == tf.float16):
            here, there = variable.dtype.name, dtype.name
            raise Mismatch(f"{variable.name} has type {here}, but {path} holds {there}")


def _key(name: str) -> str:
    return f"{name}/.ATTRIBUTES/VARIABLE_VALUE"


def _describe_unreadable(path: Path, error: Exception) -> str:
    return f"{path} cannot be read: {str(error).splitlines()[0][:200]}"


def why_unwritable(error: Exception) -> str:
    """Return why a file could not be written, without what TensorFlow adds to the reason."""
    # TensorFlow's messages have the form "{{node ...}} path; the reason [Op:...]".
    return str(error).split(" [Op:")[0].split("; ")[-1]


def verify(path: Path) -> CheckpointInfo:
    """Return a checkpoint's description if all its files are intact; raises Damaged otherwise."""
    about = _read(path)
    if about is None:
        raise Damaged(f"{path} has no about.json that can be read")
    durable_folder.verify(path)
    return about


def find(path: str | Path, best: bool = False) -> tuple[Path, CheckpointInfo]:
    """Return the checkpoint at this path, or the newest or best intact one of the run at it.

    The path may also be the name of a policy that comes with this package.

    Raises Damaged if none is intact, and Missing if there is none.
    """
    path = resolve(path)
    if missing := why_missing(path):
        raise Missing(missing)
    if (path / "about.json").exists():
        return path, _found(path)
    found = all_in(path / "checkpoints")
    order = sorted(found, key=_mean_return) if best else found
    reasons = []
    for each in reversed(order):
        try:
            return each, _found(each)
        except Damaged as error:
            reasons.append(str(error))
    raise Damaged(f"no checkpoint of {path} is intact: {reasons[0]}")


def _found(path: Path) -> CheckpointInfo:
    """Return a checkpoint's description, with the paths that a moved run has now."""
    about = verify(path)
    return about._replace(settings=environment_files.relocated(about.settings, path))


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
        earlier = {"counted_seconds": None, "own_states": (), "offline_updates": 0}
        content = earlier | content  # earlier versions wrote none of these
        content["own_states"] = tuple(content["own_states"])
        about = CheckpointInfo(**{name: content[name] for name in CheckpointInfo._fields})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return about if _has_right_types(about) else None


def _has_right_types(about: CheckpointInfo) -> bool:
    """Return whether a description has the types that its readers rely on."""
    counts = (about.learners, about.updates, about.steps, about.offline_updates)
    numbers = (*counts, about.frames, about.seconds)
    known = [x for x in (about.counted_seconds, about.episode_return) if x is not None]
    return (
        all(type(each) in (int, float) for each in (*numbers, *known))
        and all(isinstance(each, dict) for each in (about.settings, about.made_of, about.versions))
        and all(isinstance(each, str) for each in about.own_states)
    )


def _put_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that a new one can take its name."""
    for number in itertools.count(1):
        aside = path.with_name(f"damaged-{path.name}" + (f"-{number}" if number > 1 else ""))
        if not aside.exists():
            break
    with contextlib.suppress(OSError):
        path.rename(aside)
