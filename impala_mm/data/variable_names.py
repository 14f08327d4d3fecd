"""The names of an algorithm's variables: where the algorithm holds each, such as `optimizer/step`.

Checkpoints and messages use them. TensorFlow's own names may repeat, and a number in a list changes
its meaning if the list's order does. `make.make_algorithm` calls `assign`.
"""

import collections
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data.variables import Variables


@runtime_checkable
class HasNamedParts(Protocol):
    """An object that says by which names its parts are known, instead of by its attributes."""

    def named_parts(self) -> Mapping[str, object]:
        """Return its parts by name."""


def of(variable: tf.Variable) -> str:
    """Return a variable's name, such as "network/torso/w"; TensorFlow's if no path leads to it."""
    return path_of(variable) or variable.name.removesuffix(":0")


def path_of(variable: tf.Variable) -> str:
    """Return the name that `assign` has given to a variable; empty if it has given none."""
    return getattr(variable, "_path_in_algorithm", "")


def mark_slots(slots: Sequence[tf.Variable], parameters: Sequence[tf.Variable]) -> None:
    """Say which parameter each slot of an optimizer belongs to: it is named by it."""
    for slot, parameter in zip(slots, parameters, strict=True):
        slot._slot_of = parameter


def assign(variables: Variables, algorithm: object) -> None:
    """Give each variable the name of a path that leads to it from the algorithm, if one does.

    It is the shortest path through attributes, entries of dictionaries and items of sequences, and
    of several such the first by name; one that does not end in a number comes before one that does.
    """
    wanted = {
        id(v): v
        for v in (*variables.trained, *variables.carried, *variables.local)
        if v is not None
    }
    named, in_sequence = dict[int, str](), dict[int, str]()
    slots = dict[int, str]()  # the path of the list that holds a slot
    for path, number, variable in _paths(algorithm):
        key = id(variable)
        if key not in wanted:
            continue
        if number and hasattr(variable, "_slot_of"):
            slots.setdefault(key, path)
        elif number:
            in_sequence.setdefault(key, f"{path}/{number}")
        else:
            named.setdefault(key, path)
        if len(named | slots) == len(wanted):
            break
    named = in_sequence | named
    for key, path in slots.items():
        if owner := named.get(id(wanted[key]._slot_of)):
            named[key] = f"{path}/{owner}"
    counts = collections.Counter[str]()
    for key, name in named.items():
        counts[name] += 1  # 2: such as of attributes `_scale` and `scale`
        wanted[key]._path_in_algorithm = name + "_" * (counts[name] - 1)


def _paths(algorithm: object) -> Iterator[tuple[str, str, tf.Variable]]:
    """Yield (path, "", variable), or (path of its sequence, number, variable), nearest first."""
    seen, holders = {id(algorithm)}, collections.deque([("", algorithm)])
    while holders:
        path, holder = holders.popleft()
        is_sequence = isinstance(holder, list | tuple) and not _is_named_tuple(holder)
        for part, value in _parts(holder):
            inner = f"{path}/{part}" if path else part
            if isinstance(value, tf.Variable):
                yield (path, part, value) if is_sequence else (inner, "", value)
            elif id(value) not in seen and _may_hold(value):
                seen.add(id(value))
                holders.append((inner, value))


def _parts(holder: Any) -> Iterable[tuple[str, Any]]:
    """Return what an object holds, by the part of a path that leads there."""
    if isinstance(holder, HasNamedParts):
        return holder.named_parts().items()
    if _is_named_tuple(holder):
        return zip(holder._fields, holder, strict=True)
    if isinstance(holder, list | tuple):
        return ((str(number), value) for number, value in enumerate(holder))
    if isinstance(holder, dict):
        return sorted(
            ((re.sub(r"[/.]", "_", str(key)), value) for key, value in holder.items()),
            key=lambda named: named[0],
        )
    attributes = getattr(holder, "__dict__", {})
    return sorted(
        ((name.lstrip("_"), value) for name, value in attributes.items() if _is_own(name)),
        key=lambda named: named[0],
    )


def _is_named_tuple(holder: object) -> bool:
    return isinstance(holder, tuple) and hasattr(holder, "_fields")


def _is_own(attribute: str) -> bool:
    """Return whether an attribute is not one of those in which TensorFlow keeps account."""
    return not attribute.startswith(("_self_", "_obj_reference"))


_LEAVES = (str, bytes, int, float, np.ndarray, tf.Tensor, type(None), type, types.ModuleType)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def _may_hold(value: object) -> bool:
    """Return whether a variable may be found in an object."""
    if isinstance(value, (*_LEAVES, *_CODE, Variables, Config)):
        return False
    is_tensorflows = type(value).__module__.startswith("tensorflow.")
    return not is_tensorflows or isinstance(
        value, tf.Module | tf.random.Generator | list | tuple | dict
    )
