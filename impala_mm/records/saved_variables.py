"""The variables in a checkpoint: their names there, and how they are written and read."""

import itertools
import shutil
from pathlib import Path

import tensorflow as tf

from impala_mm.config import environment_files
from impala_mm.data.variables import Variables
from impala_mm.records import durable_folder
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch, Unwritable

# What TensorFlow raises for files that are none of its; IndexError: they are cut short.
_UNREADABLE = (OSError, ValueError, IndexError, tf.errors.OpError)


def named(variables: Variables) -> dict[str, tf.Variable]:
    """Return the variables that a checkpoint holds, by their names in it."""
    return _named(variables, *by_kind(variables))


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
    kinds = by_kind(variables)
    return {kind: kinds[kind] for kind in ("trained", "acting")}


def _named(variables: Variables, *chosen: str) -> dict[str, tf.Variable]:
    kinds = by_kind(variables)
    return {f"{kind}/{i}": v for kind in chosen for i, v in enumerate(kinds[kind])}


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
    kinds = by_kind(variables)

    def halved(variable: tf.Variable) -> tf.Tensor:
        halves = half and variable.dtype == tf.float32
        return tf.cast(variable, tf.float16 if halves else variable.dtype)

    kept = {"trained": map(halved, kinds["trained"]), "acting": kinds["acting"]}
    copies = {kind: [tf.Variable(value) for value in values] for kind, values in kept.items()}
    try:
        reader = tf.train.load_checkpoint(str(source / "variables"))
    except (ValueError, tf.errors.OpError):
        raise Unwritable(
            f"{source}, from which the policy was loaded, has been deleted or replaced since: load "
            f"the run's policy again"
        ) from None
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
    except _UNREADABLE as error:
        raise Mismatch(_describe_unreadable(path, error)) from None


def check_shapes(path: Path, by_name: dict[str, tf.Variable]) -> None:
    """Raise Mismatch if a variable is not in a checkpoint, or has another shape or type there."""
    if not by_name:
        return
    try:
        reader = tf.train.load_checkpoint(str(path / "variables"))
        shapes = reader.get_variable_to_shape_map()
        types = reader.get_variable_to_dtype_map()
    except _UNREADABLE as error:
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
    # TensorFlow's messages have the form "{{node ...}} path; the reason [Op:...]", and that of a
    # file of events tells in further lines how many were lost.
    return str(error).split(" [Op:")[0].split("; ")[-1].partition("\n")[0]
