"""The check of an observation against its space, for `check.py`."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from impala_mm.environments.messages import describe_error, one_line


class Problem(NamedTuple):
    """A difference between an observation and its space."""

    kind: str  # problems of one kind are reported once
    is_error: bool  # a training cannot use the observation
    sentence: str  # begins with the observation, as in "an observation of shape [3]"


class ObservationCheck:
    """The check of observations against one space, of any kind of gymnasium's."""

    def __init__(self, space: spaces.Space):
        self._space = space

    def problems(self, observation: Any) -> Iterator[Problem]:
        """Yield what is wrong with an observation."""
        yield from _problems("", observation, self._space)


def _problems(part: str, value: Any, space: spaces.Space) -> Iterator[Problem]:
    """Yield what is wrong with a part of an observation; `part` is empty for all of it."""
    of = f" in its part {part}" if part else ""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            has = f"the keys {sorted(map(str, value))}" if isinstance(value, Mapping) else "no keys"
            yield Problem(
                f"keys{part}",
                True,
                f"an observation with {has}{of}, and its space has {sorted(space.spaces)}",
            )
            return
        for key, inner in space.spaces.items():
            yield from _problems(f"{part}[{key!r}]", value[key], inner)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            yield Problem(
                f"tuple{part}",
                True,
                f"an observation that is no tuple of {len(space.spaces)}{of}, as its space says",
            )
            return
        for number, inner in enumerate(space.spaces):
            yield from _problems(f"{part}[{number}]", value[number], inner)
    elif isinstance(space, spaces.Box):
        for kind, is_error, sentence in _box_problems(value, space):
            yield Problem(f"{kind}{part}", is_error, f"{sentence}{of}")
    elif (wrong := _not_contained(value, space)) is not None:
        yield Problem(
            f"contains{part}",
            True,
            f"the observation {one_line(value)[:80]}{of}, which is not in its space, "
            f"{one_line(space)[:120]}{wrong}",
        )


def _not_contained(value: Any, space: spaces.Space) -> str | None:
    """Return why a space does not contain a value, possibly empty; None if it does."""
    try:
        return None if space.contains(value) else ""
    except Exception as error:
        return f" ({describe_error(error)})"


def _box_problems(value: Any, space: spaces.Box) -> Iterator[Problem]:
    shape = list(space.shape)
    try:
        array = np.asarray(value)
    except Exception as error:  # lists of different lengths
        yield Problem("array", True, f"an observation that is no array: {describe_error(error)}")
        return
    if array.dtype.kind not in "biuf":
        yield Problem(
            "array",
            True,
            f"an observation of {type(value).__name__} that is no array of numbers, and its space "
            f"is {one_line(space)[:120]}",
        )
        return
    if array.shape != space.shape:
        yield Problem(
            "shape",
            True,
            f"an observation of shape {list(array.shape)}, and its space has the shape {shape}",
        )
        return
    if space.shape and not isinstance(value, np.ndarray):
        yield Problem(
            "array",
            False,
            f"an observation that is a {type(value).__name__}: return an array, "
            f"np.array(observation, dtype=np.{space.dtype})",
        )
    elif array.dtype != space.dtype and space.shape:
        loses = array.dtype.kind == "f" and space.dtype.kind in "biu"
        yield Problem(
            "dtype",
            False,
            f"an observation of {array.dtype}, and its space is of {space.dtype}"
            + (", in which fractions are lost" if loses else "")
            + f": return observation.astype(np.{space.dtype})",
        )
    yield from _value_problems(array, space)


def _value_problems(array: np.ndarray, space: spaces.Box) -> Iterator[Problem]:
    finite = np.isfinite(array)
    if not finite.all():
        where = np.argwhere(~finite)[0]
        yield Problem(
            "finite",
            True,
            f"an observation with {array[tuple(where)]}{_at(where)}, which must be finite "
            f"({int((~finite).sum())} of its {array.size} numbers are not)",
        )
        return
    below, above = space.low.astype(float) - array, array - space.high.astype(float)
    excess = np.maximum(below, above)
    if excess.size and excess.max() > 0:
        where = np.array(np.unravel_index(excess.argmax(), excess.shape), int)
        index = tuple(where)
        side, bound = ("below", space.low) if below[index] > 0 else ("above", space.high)
        yield Problem(
            "bounds",
            False,
            f"an observation with {array[index]:g}{_at(where)}, which is {excess[index]:g} {side} "
            f"its space's bound of {bound[index]:g}: correct the space or the observation",
        )


def _at(where: np.ndarray) -> str:
    return f" at {where.tolist()}" if where.size else ""
