"""The variables in a checkpoint: their names there, and how they are written and read.

Whoever writes variables to a folder does so within `writing`, so that it appears complete or not at
all.

Before variables had names, those of a kind had numbers, such as `carried/3`, in an order that
`_NUMBERED` keeps. Where an attribute that leads to a variable is renamed, an entry of `_RENAMED`
lets earlier checkpoints be read.
"""

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.config import environment_flags
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config
from impala_mm.data import variable_names
from impala_mm.data.variables import Variables
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch, Unwritable

# What TensorFlow raises for files that are none of its; IndexError: they are cut short.
_UNREADABLE = (OSError, ValueError, IndexError, tf.errors.OpError)


def named(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables that a checkpoint holds, by their keys in it: KIND/NAME.

    A variable without a name has its number among those of its kind that have none.
    """
    return {
        key: variable
        for kind, of_kind in by_kind(variables).items()
        for key, variable in keyed(kind, of_kind).items()
    }


def keyed(kind: str, variables: Sequence[tf.Variable]) -> dict[str, tf.Variable]:
    """Return the variables of a kind by their keys."""
    numbers = itertools.count()
    return {f"{kind}/{variable_names.path_of(v) or next(numbers)}": v for v in variables}


def named_weights(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables with which --mode=train_from starts, by their keys in a checkpoint.

    These are all but the optimizer's slots and other carried variables.
    """
    return {key: v for key, v in named(variables).items() if not key.startswith("carried/")}


def named_with_optimizer(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables of `named` that another run may start with: all but schedules."""
    anew = {id(v) for v in variables.schedules}
    return {key: v for key, v in named(variables).items() if id(v) not in anew}


def named_for_acting(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables that choosing actions and `judge` need, by their keys in a checkpoint.

    These are the trained ones, and the carried ones that actors receive, such as normalisers.
    """
    return {k: v for k, v in named(variables).items() if k.startswith(("trained/", "acting/"))}


def tree(by_key: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given by keys as the nest of dictionaries that tf.train.Checkpoint writes."""
    root: dict[str, Any] = {}
    for key, value in by_key.items():
        *folders, last = key.split("/")
        inner = root
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = value
    return root


def by_kind(variables: Variables) -> dict[str, list[tf.Variable]]:
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
    names = named_for_acting(variables)
    trained = {id(v) for v in variables.trained}

    def value(variable: tf.Variable) -> tf.Tensor:
        halves = half and variable.dtype == tf.float32 and id(variable) in trained
        return tf.cast(variable, tf.float16 if halves else variable.dtype)

    copies = {key: tf.Variable(value(variable)) for key, variable in names.items()}
    try:
        reader = tf.train.load_checkpoint(str(source / "variables"))
    except (ValueError, tf.errors.OpError):
        raise Unwritable(
            f"{source}, from which the policy was loaded, has been deleted or replaced since: load "
            f"the run's policy again"
        ) from None
    for key in _keys_in(reader):
        if key.startswith("weights/"):
            copies[key] = tf.Variable(reader.get_tensor(key + _SUFFIX))
    work = folder.with_name(f".{folder.name}.writing")
    with writing(work, folder, about._asdict()):
        work.mkdir(parents=True)
        for path in environment_flags.files_of_checkpoint(source):
            shutil.copy(path, work)
        write(work, copies)


@contextlib.contextmanager
def writing(work: Path, final: Path, about: dict[str, Any]) -> Iterator[None]:
    """Let the body make and fill the folder `work`, which then becomes `final`, with `about`.

    If anything fails, `work` is deleted; if it is the disk, Unwritable is raised.
    """
    shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
    try:
        yield
        checkpoint.finish(work, final, about)
    except (OSError, tf.errors.OpError) as error:
        raise Unwritable(why_unwritable(error)) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write(folder: Path, by_key: Mapping[str, tf.Variable]) -> None:
    """Write variables to a folder; raise OSError or tf.errors.OpError."""
    tf.train.Checkpoint(**tree(by_key)).write(str(folder / "variables"))


def load(path: Path, by_key: Mapping[str, tf.Variable]) -> None:
    """Assign a checkpoint's values to variables; raise Mismatch before, if they do not fit.

    `by_key` has all variables of a kind, or those that one of the functions here returns.
    """
    places = check_shapes(path, by_key)
    if not by_key:
        return
    try:
        reader = tf.train.load_checkpoint(str(path / "variables"))
        for key, variable in by_key.items():  # one by one: no second copy of all values
            variable.assign(tf.cast(reader.get_tensor(places[key] + _SUFFIX), variable.dtype))
    except _UNREADABLE as error:
        raise Mismatch(_describe_unreadable(path, error)) from None


def check_shapes(path: Path, by_key: Mapping[str, tf.Variable]) -> dict[str, str]:
    """Return the keys in a checkpoint of what is given by keys of today.

    Raise Mismatch if a variable is not in it, or has another shape or type there.
    """
    if not by_key:
        return {}
    try:
        reader = tf.train.load_checkpoint(str(path / "variables"))
        shapes = reader.get_variable_to_shape_map()
        types = reader.get_variable_to_dtype_map()
        about = checkpoint.read(path)
        algorithm = about.settings.get("algorithm", Config.algorithm) if about else ""
        places = find_places(list(by_key), _keys_in(reader), algorithm)
    except _UNREADABLE as error:
        raise Mismatch(_describe_unreadable(path, error)) from None
    unread = sorted(set(_keys_in(reader)) - set(places.values()))
    for key, variable in by_key.items():
        name, here = variable_names.of(variable), variable.shape.as_list()
        place = places.get(key, "") + _SUFFIX
        if place not in shapes:
            kind, last = key.partition("/")[0], key.rpartition("/")[2]
            ends = [k for k in unread if k.startswith(f"{kind}/") and k.endswith(f"/{last}")]
            alike = [k.partition("/")[2] for k in ends if shapes[k + _SUFFIX] == here]
            of_shape = f", and has {', '.join(alike[:3])} of this shape" if alike else ""
            raise Mismatch(f"{name} has shape {here}, but {path} lacks it{of_shape}")
        if here != shapes[place]:
            raise Mismatch(f"{name} has shape {here}, but {path} holds shape {shapes[place]}")
        dtype = types[place]
        if variable.dtype != dtype and not (variable.dtype.is_floating and dtype == tf.float16):
            there = dtype.name
            raise Mismatch(f"{name} has type {variable.dtype.name}, but {path} holds {there}")
    return places


_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def _keys_in(reader: Any) -> list[str]:
    """Return the keys of a checkpoint's variables."""
    stored = reader.get_variable_to_shape_map()
    return [name.removesuffix(_SUFFIX) for name in stored if name.endswith(_SUFFIX)]


def _describe_unreadable(path: Path, error: Exception) -> str:
    return f"{path} cannot be read: {str(error).splitlines()[0][:200]}"


def why_unwritable(error: Exception) -> str:
    """Return why a file could not be written, without what TensorFlow adds to the reason."""
    # TensorFlow's messages have the form "{{node ...}} path; the reason [Op:...]", and that of a
    # file of events tells in further lines how many were lost.
    return str(error).split(" [Op:")[0].split("; ")[-1].partition("\n")[0]


# Former beginning of names -> that of today, in whole parts, such as "old/net" -> "new/torso".
_RENAMED: dict[str, str] = {}

# The order of a built-in algorithm's numbered variables, by the longest of these beginnings that
# today's name has. Those of one beginning, and those of none, are in the order of their group.
_NUMBERED = {
    "trained": (
        "network",
        "policy",
        "critics",
        "online",
        "policy_head",
        "baseline_head",
        "features",
    ),
    "acting": ("epsilon", "unit", "network", "normaliser", "plays_randomly"),
    "weights": ("log_temperature", "target", "targets", "unit", "normaliser"),
    "carried": (
        *("optimizer", "optimizers", "unit", "entropy_cost", "updates", "features", "target"),
        *("temperature", "features/distillation", "features/guidance"),
    ),
}


def find_places(keys: Sequence[str], stored: Sequence[str], algorithm: str) -> dict[str, str]:
    """Return where a checkpoint holds what has these keys, by key, as far as it does.

    `stored` are its own keys, and `algorithm` is its run's. Variables are found by their names,
    whatever kind they had.
    """
    by_name = {_today(key.partition("/")[2]): key for key in stored if not _is_numbered(key)}
    held: dict[str, str] = {}
    for kind in dict.fromkeys(key.partition("/")[0] for key in keys):
        of_kind = [key for key in keys if key.startswith(f"{kind}/")]
        there = [key for key in stored if key.startswith(f"{kind}/")]
        if there and all(map(_is_numbered, there)):
            order = _NUMBERED.get(kind, ()) if algorithm in BUILT_IN else ()
            held |= {key: f"{kind}/{i}" for i, key in enumerate(_in_order(order, of_kind))}
            continue
        for key in of_kind:
            place = key if _is_numbered(key) else by_name.get(key.partition("/")[2])
            if place is not None:
                held[key] = place
    return {key: place for key, place in held.items() if place in set(stored)}


def _is_numbered(key: str) -> bool:
    return key.rpartition("/")[2].isdecimal() and key.count("/") == 1


def _in_order(order: Sequence[str], keys: list[str]) -> list[str]:
    """Return the keys of a kind in the order in which earlier versions numbered them."""

    def number(key: str) -> int:
        name = key.partition("/")[2] + "/"
        fitting = [beginning for beginning in order if name.startswith(f"{beginning}/")]
        return order.index(max(fitting, key=len)) if fitting else len(order)

    return sorted(keys, key=number)


def _today(name: str) -> str:
    """Return the name of today of a variable that has had another one."""
    for former, today in _RENAMED.items():
        if f"{name}/".startswith(f"{former}/"):
            name = today + name[len(former) :]
        name = name.replace(f"/{former}/", f"/{today}/")  # a slot has its parameter's name
    return name
