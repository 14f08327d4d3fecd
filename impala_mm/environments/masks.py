"""Masks of the actions that an environment allows now: where it offers them, and what they contain.

An environment offers a mask after each reset and step, at one of these places:

    info["action_mask"]             as gymnasium's own environments do
    a part "action_mask"            of its Dict observation, which the network then does not read
    a method action_masks()         as Stable-Baselines3 Contrib calls it

A mask is a nest of bool vectors like the action; true allows a choice:

    Discrete                        [n]
    MultiDiscrete, MultiBinary      the choices of all elements, one after the other
    Box                             (), since its numbers have no mask
    Dict, Tuple                     a dict or tuple of masks

`GymVector` and the check of environments read masks by a `MaskConversion`, and `Policy` by
`read_mask`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from impala_mm.environments.action_parts import Part
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.gym_adapter import find_method
from impala_mm.environments.types import BadLevel

_KEY = "action_mask"  # of an info and of a Dict observation, as gymnasium and PettingZoo name it
METHOD = "action_masks"  # as Stable-Baselines3 Contrib names it

# Returns the mask in (observation, info), as the environment offers it; None: there is none.
RawMask = Callable[[Any, Any], Any]


class MaskConversion:
    """The conversion of the masks of one environment, which offers them at one place."""

    def __init__(self, actions: ActionSpec, where: str):
        """Read masks of `actions`; `where` is `info`, `observation` or `method`."""
        self._actions, self._where = actions, where
        choices = [(part.choices, name) for part, name in _named_leaves(actions.parts, "")]
        # Of each part that has choices: those of its elements, and the element's name.
        self._begins = [np.cumsum([0, *counts[:-1]]) for counts, _ in choices if counts]
        self._names = [
            [f"{name}[{k}]" if len(counts) > 1 else name for k in range(len(counts))]
            for counts, name in choices
            if counts
        ]

    def reader(self, environment: Any) -> RawMask:
        """Return the function that finds the mask of this environment."""
        if self._where == "observation":
            return lambda observation, info: observation.get(_KEY)
        if self._where == "info":
            return lambda observation, info: _in_info(info)
        method = find_method(environment, METHOD)
        assert method
        return lambda observation, info: method()

    def read(self, raw: Any) -> list[np.ndarray]:
        """Return a mask as a bool vector for each part with choices; raise ValueError if wrong."""
        if raw is None:
            place = {"info": f'in info["{_KEY}"]', "observation": f'as its part "{_KEY}"'}
            where = place.get(self._where, f"from {METHOD}()")
            raise ValueError(
                f"no action mask {where}: an environment that offers one must offer it after "
                f"every reset and every step"
            )
        return read_mask(self._actions, raw)

    def read_one(self, raw: Any, after: str) -> list[np.ndarray]:
        """Return the result of `read`; raise ValueError also if the mask allows nothing.

        `after` names the call before it, for the error.
        """
        masks = self.read(raw)
        for _, _, name in self.without_choice([mask[None] for mask in masks]):
            raise ValueError(nothing_allowed(name, after))
        return masks

    def offered(self, info: Any, count: int) -> np.ndarray:
        """Return, bool [count], which environments of a vector offer a mask after a step."""
        has = info.get(f"_{_KEY}") if self._where == "info" else None
        return np.ones(count, bool) if has is None else has

    def read_all(self, raw: Any, rows: np.ndarray, offered: np.ndarray) -> list[np.ndarray]:
        """Return the masks of those environments of a vector that `rows`, bool [E], selects.

        `raw` is a nest of arrays [E, ...]. ValueError is raised as by `read`.
        """
        whole = isinstance(raw, np.ndarray) and raw.dtype != object and raw.ndim > 1
        if whole and offered[rows].all():
            self.read(raw[rows.argmax()])  # sees whether the shape is right
            some = raw.reshape(len(rows), -1)[rows]
            if raw.dtype == bool or ((some == 0) | (some == 1)).all():
                return [some != 0]
        numbers = np.flatnonzero(rows).tolist()
        each = [self.read(_row(raw, i) if offered[i] else None) for i in numbers]
        return [np.stack(part) for part in zip(*each, strict=True)]

    def read_last(self, observation: Any, infos: Any, i: int) -> list[np.ndarray] | None:
        """Return the mask after the last step of an episode, if a vector keeps it; None otherwise.

        `observation` is environment i's last one; `infos` are the last ones of all environments.
        """
        raw = observation.get(_KEY) if self._where == "observation" else None
        if self._where == "info" and infos is not None:
            raw = (_row(infos, i) or {}).get(_KEY)
        return None if raw is None else self.read(raw)

    def ones(self, count: int) -> Any:
        """Return `count` masks that allow everything: a nest of new arrays [count, ...]."""
        leaves = [
            np.ones((count, sum(part.choices)), bool) if part.choices else ()
            for part in self._actions.leaves
        ]
        return self._actions.pack(leaves)

    def without_choice(self, masks: list[np.ndarray]) -> Iterator[tuple[int, int, str]]:
        """Yield where masks [E, ...] allow nothing: the row, the array's number, and what it masks.

        What it masks is the name of an element within an action, and empty if an action is one.
        """
        for number, (mask, begins) in enumerate(zip(masks, self._begins, strict=True)):
            some = np.logical_or.reduceat(mask, begins, axis=1)  # [E, K]
            if some.all():
                continue
            for i, k in np.argwhere(~some).tolist():
                yield i, number, self._names[number][k]


def nothing_allowed(name: str, after: str) -> str:
    """Return the error that a mask allows nothing; `name` is from `without_choice`."""
    return (
        f"the action mask after {after} allows no choice of the action{name}: it must allow at "
        f"least one until the episode ends"
    )


def find_declared(environment: Any, actions: ActionSpec) -> MaskConversion | None:
    """Return the conversion if the observation space or a method offers masks, else None."""
    parts = getattr(environment.observation_space, "spaces", None)
    if isinstance(parts, Mapping) and _KEY in parts:
        return MaskConversion(actions, "observation")
    return MaskConversion(actions, "method") if find_method(environment, METHOD) else None


def is_in_info(info: Any) -> bool:
    """Return whether the info of a reset or step has a mask."""
    return _in_info(info) is not None


def refuse_unsuitable(level_name: str, actions: ActionSpec, repeats: int) -> None:
    """Raise BadLevel if a level that offers masks has no choices, or repeats its actions."""
    if not any(part.choices for part in actions.leaves):
        raise BadLevel(
            f"{level_name} offers a mask of its actions, and its actions {actions.describe()} have "
            f"no choices that could be masked: remove the mask in a gymnasium.Wrapper"
        )
    if repeats > 1:
        raise BadLevel(
            f"num_action_repeats is {repeats}, and {level_name} offers a mask of its actions, "
            f"which may forbid an action while it is repeated: leave it 0"
        )


def refuse_unexpected(info: Any) -> None:
    """Raise ValueError if there is a mask in an info, although the first reset had none."""
    if is_in_info(info):
        raise ValueError(
            f'an action mask in info["{_KEY}"], and the first reset offered none: an environment '
            f"that offers one must offer it after every reset and every step"
        )


def without_mask(space: spaces.Space) -> spaces.Space:
    """Return an observation space without the mask at its top level."""
    if not isinstance(space, spaces.Dict) or _KEY not in space.spaces:
        return space
    return spaces.Dict({key: part for key, part in space.spaces.items() if key != _KEY})


def mask_in_observation(observation: Any) -> Any:
    """Return the mask in an observation; None if it has none."""
    return observation.get(_KEY) if isinstance(observation, Mapping) else None


def rest_of_observation(observation: Any) -> Any:
    """Return an observation without the mask at its top level."""
    if not isinstance(observation, Mapping):
        return observation
    return {key: part for key, part in observation.items() if key != _KEY}


def read_mask(actions: ActionSpec, raw: Any) -> list[np.ndarray]:
    """Return a mask as a bool vector for each part of the action that has choices.

    Within a Dict or Tuple, a part of the mask may be None or missing: everything is allowed. The
    vectors of a MultiDiscrete's elements may also be a tuple or a list, or the rows of an array.
    ValueError is raised if a shape, a type or a value is wrong.
    """
    if isinstance(actions.parts, Part):
        return [_vector(actions.parts, raw, "")]
    return list(_vectors(actions.parts, raw, ""))


def _vectors(parts: Any, raw: Any, name: str) -> Iterator[np.ndarray]:
    if isinstance(parts, dict):
        masks = {} if raw is None else raw
        if not isinstance(masks, Mapping) or not masks.keys() <= parts.keys():
            what = f"the keys {list(masks)}" if isinstance(masks, Mapping) else f"{type(raw)}"
            raise ValueError(f"action mask{name} of {what} for an action of {sorted(parts)}")
        for key in sorted(parts):
            yield from _vectors(parts[key], masks.get(key), f"{name}[{key!r}]")
    elif isinstance(parts, tuple):
        masks = [None] * len(parts) if raw is None else raw
        if not isinstance(masks, list | tuple) or len(masks) != len(parts):
            raise ValueError(f"action mask{name} that is not a tuple of {len(parts)} masks")
        for i, part in enumerate(parts):
            yield from _vectors(part, masks[i], f"{name}[{i}]")
    elif parts.choices:
        yield np.ones(sum(parts.choices), bool) if raw is None else _vector(parts, raw, name)
    elif raw is not None and np.size(raw):
        raise ValueError(f"action mask{name} for {parts}, whose numbers have no mask")


def _vector(part: Part, raw: Any, name: str) -> np.ndarray:
    """Return the mask of one part, bool [N], where N is the sum of its numbers of choices."""
    size = sum(part.choices)
    if raw.__class__ is not np.ndarray:
        raw = _joined(part, raw, name)
    rows = (*part.shape, part.choices[0]) if len(set(part.choices)) == 1 else (size,)
    if raw.shape not in ((size,), rows):
        raise ValueError(
            f"action mask{name} of shape {list(raw.shape)}, and {part} has the mask [{size}]"
        )
    if raw.dtype == bool:
        return raw.reshape(-1)
    if raw.dtype.kind not in "iuf" or not ((raw == 0) | (raw == 1)).all():
        raise ValueError(
            f"action mask{name} of {raw.dtype.name} {raw.tolist()}, which must be bool, or 0 and 1"
        )
    return raw.reshape(-1) != 0


def _joined(part: Part, raw: Any, name: str) -> np.ndarray:
    """Return a mask in lists or tuples as one array; the vectors of elements may be of any size."""
    vectors = list(_leaves(raw))
    if len(vectors) > 1 and [np.size(vector) for vector in vectors] != list(part.choices):
        raise ValueError(
            f"action mask{name} of vectors of {', '.join(str(np.size(v)) for v in vectors)}, and "
            f"{part} has the choices {', '.join(map(str, part.choices))}"
        )
    return np.concatenate([np.atleast_1d(np.asarray(vector)) for vector in vectors])


def _leaves(raw: Any) -> Iterator[Any]:
    """Yield the vectors in lists and tuples of these."""
    if isinstance(raw, list | tuple) and any(isinstance(e, list | tuple | np.ndarray) for e in raw):
        for part in raw:
            yield from _leaves(part)
    else:
        yield raw


def _named_leaves(parts: Any, name: str) -> Iterator[tuple[Part, str]]:
    """Yield each part of an action with its name, in the order of `nests.flatten`."""
    if isinstance(parts, dict):
        for key in sorted(parts):
            yield from _named_leaves(parts[key], f"{name}[{key!r}]")
    elif isinstance(parts, tuple):
        for i, part in enumerate(parts):
            yield from _named_leaves(part, f"{name}[{i}]")
    else:
        yield parts, name


def _row(raw: Any, i: int) -> Any:
    """Return the mask of environment i in those of a vector, which says by `_key` who has one."""
    if isinstance(raw, Mapping):
        named = [key for key in raw if key[:1] != "_" or key[1:] not in raw]
        return {
            key: _row(raw[key], i) for key in named if f"_{key}" not in raw or raw[f"_{key}"][i]
        }
    if isinstance(raw, tuple):
        return tuple(_row(part, i) for part in raw)
    return None if raw is None else raw[i]


def _in_info(info: Any) -> Any:
    # dict is for speed: asking the abstract class takes three times as long.
    return info.get(_KEY) if isinstance(info, (dict, Mapping)) else None
