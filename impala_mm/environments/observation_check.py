"""The check of an observation against its space, for `check.py`."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from impala_mm.config.messages import describe_error, join_lines

_ROUNDING = 1e-6  # by which a number may exceed a bound, relative to it; the bound was rounded, too


class Problem(NamedTuple):
    """A difference between an observation and its space."""

    kind: str  # problems of one kind are reported once
    is_error: bool  # a training cannot use the observation
    sentence: str  # begins with the observation, as in "an observation of shape [3]"


def find_problems(observation: Any, space: spaces.Space, part: str = "") -> Iterator[Problem]:
    """Yield what is wrong with an observation of a space that `spaces.read_spaces` accepts.

    `part` is the place of the observation if it is a part of another one, such as "['map'][0]".
    """
    if isinstance(space, spaces.Dict):
        for key, each in space.spaces.items():
            if isinstance(observation, Mapping) and key in observation:
                yield from find_problems(observation[key], each, f"{part}[{key!r}]")
            else:
                yield _name_part(part, _lacks(observation, f"the key {key!r}"))
    elif isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            yield _name_part(part, _lacks(observation, f"the {len(space.spaces)} parts"))
            return
        for i, each in enumerate(space.spaces):
            yield from find_problems(observation[i], each, f"{part}[{i}]")
    else:
        for problem in _leaf_problems(observation, space):
            yield _name_part(part, problem)


def _lacks(observation: Any, what: str) -> Problem:
    kind = type(observation).__name__
    return Problem("parts", True, f"an observation of {kind} without {what} of its space")


def _name_part(part: str, problem: Problem) -> Problem:
    """Return a problem of a part, with the part's place in its kind and its sentence."""
    if not part:
        return problem
    sentence = f"as part {part} of its observation {problem.sentence}"
    return Problem(problem.kind + part, problem.is_error, sentence)


def _leaf_problems(observation: Any, space: spaces.Space) -> Iterator[Problem]:
    """Yield what is wrong with an observation of a space that is not made of others."""
    shown, shape = join_lines(space)[:120], space.shape or ()
    try:
        array = np.asarray(observation)
        numbers = array.astype(np.float64)
    except Exception as error:  # such as lists of different lengths
        what = f"an observation of {type(observation).__name__} that is no array of numbers"
        yield Problem(
            "array", True, f"{what}, and its space is {shown} ({describe_error(error)[:120]})"
        )
        return
    if array.shape != shape:
        what = f"an observation of shape {list(array.shape)}"
        yield Problem("shape", True, f"{what}, and its space has the shape {list(shape)}")
    elif not np.isfinite(numbers).all():
        where = tuple(np.argwhere(~np.isfinite(numbers))[0])
        count = f"{int((~np.isfinite(numbers)).sum())} of its {array.size} numbers are not"
        what = f"an observation with {array[where]}{_at(where)}, which must be finite"
        yield Problem("finite", True, f"{what} ({count})" if array.shape else what)
    elif isinstance(space, spaces.Discrete):
        yield from _choice_problems(observation, array, space, space.n, "int(observation)")
    elif isinstance(space, spaces.MultiDiscrete):
        advice = "observation.astype(np.int64)"
        yield from _choice_problems(observation, array, space, space.nvec, advice)
    elif isinstance(space, spaces.MultiBinary):
        yield from _bound_problems(numbers, np.zeros(shape), np.ones(shape))
    elif isinstance(space, spaces.Box):
        yield from _type_problems(observation, array, space)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        yield from _bound_problems(numbers, low, high)


def _choice_problems(
    observation: Any,
    array: np.ndarray,
    space: spaces.Discrete | spaces.MultiDiscrete,
    count: Any,
    advice: str,
) -> Iterator[Problem]:
    """Yield what is wrong with one choice, or several, of `count` from the space's start on."""
    shown, chosen = f"the observation {join_lines(observation)[:80]}", array.astype(np.int64)
    if not ((chosen >= space.start) & (chosen < space.start + count)).all():
        what = f"{shown}, which is not in its space, {join_lines(space)[:120]}"
        yield Problem("state", True, what)
    elif array.dtype.kind not in "iu":
        yield Problem("dtype", False, f"{shown}, which is no integer: return {advice}")


def _type_problems(observation: Any, array: np.ndarray, space: spaces.Box) -> Iterator[Problem]:
    """Yield what is wrong with the type of an observation; a training converts it."""
    if not space.shape:
        return
    if not isinstance(observation, np.ndarray):
        what = f"an observation that is a {type(observation).__name__}: return an array"
        yield Problem("array", False, f"{what}, np.array(observation, dtype=np.{space.dtype})")
    elif array.dtype != space.dtype:
        loses = array.dtype.kind == "f" and space.dtype.kind in "biu"
        what = f"an observation of {array.dtype}, and its space is of {space.dtype}"
        what += ", in which fractions are lost" if loses else ""
        yield Problem("dtype", False, f"{what}: return observation.astype(np.{space.dtype})")


def _bound_problems(numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> Iterator[Problem]:
    """Yield the number that exceeds its bound the most; a training uses it as it is."""
    excess = np.maximum(low - numbers, numbers - high)
    bound = np.where(numbers < low, low, high)
    if (excess > _ROUNDING * np.maximum(np.abs(bound), 1)).any():
        where = np.unravel_index(excess.argmax(), excess.shape)
        side = "below" if numbers[where] < low[where] else "above"
        what = f"an observation with {numbers[where]:g}{_at(where)}, which is {excess[where]:g}"
        yield Problem(
            "bounds",
            False,
            f"{what} {side} its space's bound of {bound[where]:g}: correct the space or the "
            f"observation",
        )


def _at(where: tuple[Any, ...]) -> str:
    return f" at {[int(index) for index in where]}" if where else ""
