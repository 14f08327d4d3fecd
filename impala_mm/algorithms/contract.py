"""Checks of what an algorithm's functions return against what it declares, made while tracing.

Actors, inference at the learner, policies, the learner and --validate call `act`, `judge`,
`judge_unroll` and the updates of an algorithm here, within a tf.function: a mistake in them is one
sentence, and checking costs nothing once they are traced.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature import Feature
from impala_mm.algorithms.interface import (
    Algorithm,
    Context,
    EnvironmentNumber,
    PolicyOutput,
    Updated,
    defines,
)
from impala_mm.config.errors import UserMistake
from impala_mm.config.messages import describe_error, users_place
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.data.variables import BadVariables
from impala_mm.distributed.gradients import GradientReducer


class AlgorithmMistake(UserMistake):
    """A mistake in an algorithm's code that shows when it is traced.

    The cause is the exception that the code raised, if it did.
    """


def act(
    algorithm: Algorithm,
    entry: Entry,
    core_state: Any,
    exploration: tf.Tensor,
    environment: EnvironmentNumber,
) -> tuple[Any, Any, Any]:
    """Return what `act` returns; raise AlgorithmMistake if it is not what `unroll` declares."""
    name = _name(algorithm, "act_by_number" if defines(algorithm.act_by_number) else "act")
    unroll = algorithm.unroll
    size = entry.first.shape[0]
    _compare(
        "initial_state returns", "a core state", core_state, "unroll.start", unroll.start, size
    )
    with _naming_mistakes(name):
        results = algorithm.act_by_number(entry, core_state, exploration, environment)
    if not isinstance(results, tuple | list) or len(results) != 3:
        raise AlgorithmMistake(
            f"{name} returns {_describe(results)}; wanted are three results: (actions, core state, "
            f"extras)"
        )
    actions, state, extras = results
    step = unroll.step
    _compare(f"{name} returns", "actions", actions, "unroll.step.action", step.action, size)
    _compare(f"{name} returns", "a core state", state, "unroll.start", unroll.start, size)
    _compare(f"{name} returns", "extras", extras, "unroll.step.extras", step.extras, size)
    return actions, state, extras


def evaluated_act(algorithm: Algorithm) -> Callable[[Entry, Any, tf.Tensor], tuple[Any, Any, Any]]:
    """Return the `act` of an algorithm for environments outside of a run: each is number 0 of 1."""

    def act_outside(entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        number = EnvironmentNumber.outside_of_a_run(entry.first)
        return act(algorithm, entry, core_state, exploration, number)

    return act_outside


def judge(
    algorithm: Algorithm, entries: Entry, core_state: Any, method: str = "judge"
) -> PolicyOutput:
    """Return what `judge` or `judge_unroll` does; raise AlgorithmMistake for no such output."""
    with _naming_mistakes(name := _name(algorithm, method)):
        output = getattr(algorithm, method)(entries, core_state)
    _check_output(name, output, entries)
    return output


def update(
    algorithm: Algorithm,
    batch: Batch,
    context: Context,
    exchange: GradientReducer,
    method: str = "update",
) -> Updated:
    """Return what `update` or `offline_update` does; raise AlgorithmMistake for other results."""
    with _calling_features(algorithm, name := _name(algorithm, method)):
        results = getattr(algorithm, method)(batch, context, exchange)
    if not isinstance(results, tuple | list) or len(results) != 2:
        raise AlgorithmMistake(
            f"{name} returns {_describe(results)}; wanted are two results: (metrics, priorities "
            f"[B]), where batch.weight serves as priorities for a source that reads none"
        )
    metrics, priorities = results
    if not isinstance(metrics, Mapping):
        raise AlgorithmMistake(
            f"{name} returns {_describe(metrics)} as its metrics; wanted is a dict of numbers"
        )
    for key, value in metrics.items():
        tensor = _as_tensor(value)
        if tensor is None or not _is_number(tensor):
            raise AlgorithmMistake(
                f"{name} returns the metric {key!r}, which is {_describe(value)}; wanted is a "
                f"number, of shape [], such as its tf.reduce_mean"
            )
    columns = batch.weight.shape[0]
    wanted = tf.TensorSpec([], tf.float32)
    _compare(f"{name} returns", "priorities", priorities, "the interface", wanted, columns)
    return dict(metrics), priorities


def trace_judges(algorithm: Algorithm) -> None:
    """Trace `judge`, and `judge_unroll` if there is one, for the declared shapes; run nothing."""
    unroll = batches.specs(algorithm.unroll, 2)
    entry = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), unroll.unrolls
    )
    entry = entry._replace(terminated=None, truncated=None, extras=None)  # as while playing

    def trace(method: str, entries: Entry) -> None:
        traced = tf.function(functools.partial(judge, algorithm, method=method), autograph=False)
        traced.get_concrete_function(entries, unroll.start)

    trace("judge", entry)
    if defines(algorithm.judge_unroll):
        trace("judge_unroll", unroll.unrolls)


def check_read(algorithm: Algorithm, traced: Any) -> None:
    """Raise AlgorithmMistake if a traced `act` reads a variable whose new values it never gets."""
    try:
        algorithm.variables.check_read(traced)
    except BadVariables as error:
        raise AlgorithmMistake(f"{_name(algorithm, 'act')} {error}") from None


def check_assigned(algorithm: Algorithm, method: str, traced: Any, exchange: Any) -> None:
    """Raise AlgorithmMistake if a traced update assigns a variable of no group of `variables`."""
    try:
        algorithm.variables.check_assigned(traced, exchange.variables)
    except BadVariables as error:
        raise AlgorithmMistake(f"{_name(algorithm, method)} {error}") from None


def _check_output(name: str, output: Any, entry: Entry) -> None:
    """Raise AlgorithmMistake if an output has not the axes of `entry`, [...]."""
    if not isinstance(output, PolicyOutput):
        raise AlgorithmMistake(f"{name} returns {_describe(output)}; wanted is a PolicyOutput")
    leading = entry.first.shape
    axes = "T+1, B" if len(leading) > 1 else "B"
    for field, value in output._asdict().items():
        if value is None and field in ("parameters", "values"):
            continue
        tensor = _as_tensor(value)
        shape = [*leading] if field == "value" else [*leading, None]
        fits = tensor is not None and tensor.shape.is_compatible_with(shape)
        if tensor is None or not fits or tensor.dtype != tf.float32:
            of_parts = "" if field == "value" else ", N"
            raise AlgorithmMistake(
                f"{name} returns a PolicyOutput whose {field} is {_describe(value)}; wanted is "
                f"float32 [{axes}{of_parts}]"
            )


@contextlib.contextmanager
def _naming_mistakes(name: str) -> Iterator[None]:
    """Raise AlgorithmMistake for what a user's code raises, with its place.

    What only our own code is to blame for keeps its traceback.
    """
    try:
        yield
    except UserMistake:
        raise
    except Exception as error:
        place = users_place(error)
        if not place:
            raise
        if isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
            raise AlgorithmMistake(
                f"{name} uses a tensor where Python needs its value, at {place}: instead of `if`, "
                f"`while`, `and` or `for` on a tensor write tf.cond, tf.where or tf.while_loop, or "
                f"a tf.function of your own, for which AutoGraph is on"
            ) from None
        raise AlgorithmMistake(f"{name} raises {describe_error(error)} (at {place})") from error


@contextlib.contextmanager
def _calling_features(algorithm: Algorithm, name: str) -> Iterator[None]:
    """Raise AlgorithmMistake for an update that leaves a part of its features out, too."""
    features = algorithm.features
    features.called.clear()
    with _naming_mistakes(name):
        yield
    needed = ["begin", "loss", "after"]
    if any(f.online and type(f).advantages is not Feature.advantages for f in features):
        needed += [] if "offline" in name else ["advantages"]
    left_out = [call for call in needed if call not in features.called]
    if left_out and (kinds := [type(feature).__name__ for feature in features]):
        raise AlgorithmMistake(
            f"{name} does not call features.{left_out[0]}, without which {', '.join(kinds)} has no "
            f"effect (impala_mm/algorithms/feature.py)"
        )


def _compare(who: str, what: str, value: Any, where: str, declared: Any, size: int | None) -> None:
    """Raise AlgorithmMistake if a nest of [B, ...] has not the declared structure and leaves."""
    if difference := _difference(value, declared, size):
        path, came, wanted = difference
        which = f"{what} whose {path} is" if path else f"{what}:"
        raise AlgorithmMistake(f"{who} {which} {came}; {where}{path} declares {wanted}")


def _difference(
    value: Any, declared: Any, size: int | None, path: str = ""
) -> tuple[str, str, str] | None:
    """Return the path of the first difference, what came and what was declared; None: no one."""
    parts, wanted = _parts(value), _parts(declared)
    if parts is not None and wanted is not None:
        if list(parts) != list(wanted):
            return path, _describe(value), _describe(declared, of_columns=True)
        pairs = ((name, parts[name], wanted[name]) for name in wanted)
        differences = (_difference(part, spec, size, path + name) for name, part, spec in pairs)
        return next(filter(None, differences), None)
    tensor = None if parts is not None or wanted is not None else _as_tensor(value)
    if (
        tensor is None
        or tensor.dtype != declared.dtype
        or not tensor.shape.is_compatible_with([size, *declared.shape])
    ):
        return path, _describe(value, size), _describe(declared, of_columns=True)
    return None


def _parts(nest: Any) -> dict[str, Any] | None:
    """Return the parts of a nest by the words that select them; None if it is a leaf."""
    if isinstance(nest, Mapping):
        return {f"[{key!r}]": nest[key] for key in sorted(nest)}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return {f".{name}": part for name, part in zip(nest._fields, nest, strict=True)}
    if isinstance(nest, tuple | list):
        return {f"[{i}]": part for i, part in enumerate(nest)}
    return None


def _as_tensor(value: Any) -> tf.Tensor | None:
    """Return a value as a tensor; None if it is none."""
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return None


def _is_number(tensor: tf.Tensor) -> bool:
    kind = tensor.dtype
    is_real = kind.is_floating or kind.is_integer or kind.is_bool
    return is_real and tensor.shape.is_compatible_with([])


def _describe(value: Any, size: int | None = None, of_columns: bool = False) -> str:
    """Return a value's structure, or dtype and shape, in words.

    An axis of this `size` is B; the spec of one column gets that axis with `of_columns`.
    """
    parts = _parts(value)
    if parts is not None:
        kind = type(value).__name__
        if not parts:
            return f"an empty {kind}"
        names = [name.lstrip(".") for name in parts]
        more = ", ..." if names[5:] else ""
        return f"a {kind} of {len(parts)} ({', '.join(names[:5])}{more})"
    if not hasattr(value, "dtype"):
        return f"{value!r}" if value is None else f"the {type(value).__name__} {value!r}"
    shape = value.shape
    if isinstance(shape, tf.TensorShape) and shape.rank is None:
        return f"{tf.as_dtype(value.dtype).name} of an unknown shape"
    axes = ["?" if axis is None else str(axis) for axis in shape]
    if of_columns:
        axes.insert(0, "B")
    elif axes and shape[0] == size:
        axes[0] = "B"
    return f"{tf.as_dtype(value.dtype).name} [{', '.join(axes)}]"


def _name(algorithm: Algorithm, method: str) -> str:
    """Return the name of an algorithm's method, and its class."""
    kind = type(algorithm)
    return f"{method} of {kind.__module__}.{kind.__qualname__}"
