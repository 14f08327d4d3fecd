"""Actions: what a policy chooses, what an environment takes, and what a network reads of them.

A policy's action is a nest of arrays, one for each part of the environment's action space:

    Discrete        int32 []        the number of a choice, counted from 0
    MultiDiscrete   int32 [...]     one such number for each element
    MultiBinary     int32 [...]     0 or 1
    Box             float32 [...]   numbers from -1 to 1 where the space has two bounds, which stand
                                    for these; the environment's own numbers where it has not
    Dict, Tuple                     a dict or tuple of actions

`spaces.read_actions` makes an `ActionSpec` from a space of gymnasium. This module needs no
gymnasium, since learners and networks use it, and imports TensorFlow only where tensors are made:
the check of an environment does without it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

_ENDLESS = 1e10  # a bound beyond it is none: no policy explores such a range


class UnsuitableActions(ValueError):
    """An action space that an algorithm does not support; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Discrete:
    """One choice among `n`."""

    n: int
    start: int = 0  # the environment's number of choice 0

    shape = ()
    policy_dtype = "int32"

    @property
    def num_features(self) -> int:
        """The number of features of an action."""
        return self.n

    def features(self, action: "tf.Tensor", first: "tf.Tensor") -> "tf.Tensor":
        """Return the actions [N] as one-hot vectors, float32 [N, n]; zeros where `first`."""
        import tensorflow as tf  # noqa: PLC0415

        return tf.one_hot(tf.where(first, -1, action), self.n)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [E] as the environment takes them."""
        # NumPy's integers, as a space's sample() returns: every environment accepts these.
        return np.add(actions, self.start, dtype=np.int64)

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, each among a number of its own."""

    shape: tuple[int, ...]
    n: tuple[int, ...]  # numbers of choices, one for each element
    start: tuple[int, ...]  # the environment's numbers of the choices 0
    dtype: str = "int64"  # of the environment's actions

    policy_dtype = "int32"

    @property
    def num_features(self) -> int:
        """The number of features of an action."""
        return sum(self.n)

    def features(self, action: "tf.Tensor", first: "tf.Tensor") -> "tf.Tensor":
        """Return the actions [N, ...] as joined one-hot vectors; zeros where `first`."""
        import tensorflow as tf  # noqa: PLC0415

        numbers = tf.where(first[:, None], -1, _flat(action, self.shape))  # [N, K]
        hot = tf.one_hot(numbers, max(self.n))
        used = [i * max(self.n) + j for i, n in enumerate(self.n) for j in range(n)]
        return tf.gather(tf.reshape(hot, [-1, len(self.n) * max(self.n)]), used, axis=1)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [E, ...] as the environment takes them."""
        return (actions + np.reshape(self.start, self.shape)).astype(self.dtype)

    def __str__(self) -> str:
        return f"MultiDiscrete({np.reshape(self.n, self.shape).tolist()})"


@dataclasses.dataclass(frozen=True)
class MultiBinary:
    """Several decisions at once, each yes (1) or no (0)."""

    shape: tuple[int, ...]

    policy_dtype = "int32"

    @property
    def num_features(self) -> int:
        """The number of features of an action."""
        return int(np.prod(self.shape))

    def features(self, action: "tf.Tensor", first: "tf.Tensor") -> "tf.Tensor":
        """Return the actions [N, ...] as vectors of zeros and ones; zeros where `first`."""
        import tensorflow as tf  # noqa: PLC0415

        return tf.cast(tf.where(first[:, None], 0, _flat(action, self.shape)), tf.float32)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [E, ...] as the environment takes them."""
        return actions.astype(np.int8)

    def __str__(self) -> str:
        return f"MultiBinary({list(self.shape)})"


@dataclasses.dataclass(frozen=True)
class Box:
    """Several numbers at once; those with two bounds are rescaled to [-1, 1] for the policy."""

    shape: tuple[int, ...]
    low: tuple[float, ...]  # the environment's bounds, one for each element; may be infinite
    high: tuple[float, ...]
    dtype: str = "float32"  # of the environment's actions

    policy_dtype = "float32"

    @property
    def num_features(self) -> int:
        """The number of features of an action."""
        return int(np.prod(self.shape))

    @functools.cached_property
    def rescaled(self) -> np.ndarray:
        """Whether the policy's numbers are rescaled, bool [...]: where there are two bounds."""
        return (np.abs(self._lows) < _ENDLESS) & (np.abs(self._highs) < _ENDLESS)

    @functools.cached_property
    def scale(self) -> np.ndarray:
        """The environment's units in one unit of the policy, float64 [...]."""
        return np.where(self.rescaled, self._highs / 2 - self._lows / 2, 1.0)

    @functools.cached_property
    def middle(self) -> np.ndarray:
        """The environment's numbers where those of the policy are 0, float64 [...]."""
        lows, highs = (np.where(self.rescaled, ends, 0) for ends in (self._lows, self._highs))
        return lows / 2 + highs / 2

    @property
    def policy_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the greatest number of a policy's action, float32 [...] each."""
        low = np.where(self.rescaled, -1, self._lows)
        high = np.where(self.rescaled, 1, self._highs)
        return low.astype(np.float32), high.astype(np.float32)

    def in_environment_units(self, actions: "tf.Tensor") -> "tf.Tensor":
        """Return a policy's actions, tensors [N, ...], in the environment's units and bounds."""
        import tensorflow as tf  # noqa: PLC0415

        numbers = actions * _f(self.scale) + _f(self.middle)
        return tf.clip_by_value(numbers, _f(self._lows), _f(self._highs))

    def from_environment_units(self, actions: "tf.Tensor") -> "tf.Tensor":
        """Return the inverse of `in_environment_units`."""
        return (actions - _f(self.middle)) / _f(np.where(self.scale > 0, self.scale, 1))

    def features(self, action: "tf.Tensor", first: "tf.Tensor") -> "tf.Tensor":
        """Return the actions [N, ...] as vectors [N, D]; zeros where `first`."""
        import tensorflow as tf  # noqa: PLC0415

        return tf.where(first[:, None], 0.0, _flat(action, self.shape))

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [E, ...] as the environment takes them; never beyond its bounds."""
        numbers = actions * self.scale + self.middle  # in float64
        if np.dtype(self.dtype).kind in "iu":
            numbers = np.rint(numbers)
        return np.clip(numbers, self._lows, self._highs).astype(self.dtype)

    @functools.cached_property
    def _lows(self) -> np.ndarray:
        return np.reshape(np.array(self.low, np.float64), self.shape)

    @functools.cached_property
    def _highs(self) -> np.ndarray:
        return np.reshape(np.array(self.high, np.float64), self.shape)

    def __str__(self) -> str:
        ends = [
            f"{ends[0]:g}" if len(set(ends)) == 1 else str([float(f"{x:g}") for x in ends])
            for ends in (self.low, self.high)
        ]
        return f"Box({list(self.shape)}, {' to '.join(ends)})"


Part = Discrete | MultiDiscrete | MultiBinary | Box


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """The actions of an environment: a `Part`, or a dict or tuple of these, nested."""

    parts: Any

    @functools.cached_property
    def leaves(self) -> list[Part]:
        """The parts, in the order of `tf.nest.flatten`."""
        return _flatten(self.parts)

    @functools.cached_property
    def specs(self) -> Any:
        """The specs of one action: nest of tf.TensorSpec."""
        import tensorflow as tf  # noqa: PLC0415

        return self.pack([tf.TensorSpec(p.shape, tf.as_dtype(p.policy_dtype)) for p in self.leaves])

    @property
    def discrete(self) -> int | None:
        """The number of choices if an action is a single choice, else None."""
        return self.parts.n if isinstance(self.parts, Discrete) else None

    @property
    def num_features(self) -> int:
        """The number of features of an action."""
        return sum(part.num_features for part in self.leaves)

    def pack(self, flat: Sequence[Any]) -> Any:
        """Return a list with something for each part as a nest like an action."""
        return _pack(self.parts, iter(flat))

    def as_arrays(self, actions: Any) -> Any:
        """Return actions, a nest of arrays or lists [N, ...], as arrays of a policy's types."""
        if isinstance(self.parts, Part):  # `actions` may be a list, which is not a nest here
            return np.asarray(actions, self.parts.policy_dtype)
        pairs = zip(self.leaves, _flatten(actions), strict=True)
        return self.pack([np.asarray(each, part.policy_dtype) for part, each in pairs])

    def zeros(self, count: int) -> Any:
        """Return `count` actions of zeros: nest of NumPy arrays [count, ...]."""
        return self.pack([np.zeros([count, *p.shape], p.policy_dtype) for p in self.leaves])

    def features(self, action: Any, first: "tf.Tensor") -> "tf.Tensor":
        """Return what a network reads of actions: float32 [N, F], zeros where `first`, bool [N]."""
        import tensorflow as tf  # noqa: PLC0415

        read = [
            part.features(each, first)
            for part, each in zip(self.leaves, _flatten(action), strict=True)
        ]
        return read[0] if len(read) == 1 else tf.concat(read, -1)

    def to_environments(self, actions: Any) -> Any:
        """Return a policy's actions [E, ...] as a sequence of E actions that environments take."""
        if isinstance(self.parts, Part):
            return self.parts.to_environment(actions)
        arrays = [
            part.to_environment(each)
            for part, each in zip(self.leaves, _flatten(actions), strict=True)
        ]
        nest = self.pack(arrays)
        return [_row(nest, i) for i in range(len(arrays[0]))]

    def in_environment_units(self, actions: Any) -> Any:
        """Return a policy's actions, tensors [N, ...], with a Box's numbers as the environment's.

        The numbers of choices stay: they are counted from 0.
        """
        return self._map(lambda box, x: box.in_environment_units(x), actions)

    def from_environment_units(self, actions: Any) -> Any:
        """Return the inverse of `in_environment_units`."""
        return self._map(lambda box, x: box.from_environment_units(x), actions)

    def _map(self, function: Callable[[Box, "tf.Tensor"], "tf.Tensor"], actions: Any) -> Any:
        """Return actions with `function` applied to those of each Box."""
        pairs = zip(self.leaves, _flatten(actions), strict=True)
        return self.pack([function(p, x) if isinstance(p, Box) else x for p, x in pairs])

    def describe(self) -> int | str:
        """Return the actions for messages and checkpoints: a number if it is a single choice."""
        return self.parts.n if isinstance(self.parts, Discrete) else _describe(self.parts)


def _f(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float32)


def _flat(action: "tf.Tensor", shape: tuple[int, ...]) -> "tf.Tensor":
    """Return actions [N, *shape] as vectors [N, D]."""
    import tensorflow as tf  # noqa: PLC0415

    return action if len(shape) == 1 else tf.reshape(action, [-1, int(np.prod(shape))])


def _flatten(nest: Any) -> list[Any]:
    """Return the leaves of a nest of dicts and tuples in the order of `tf.nest.flatten`."""
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in _flatten(nest[key])]
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in _flatten(part)]
    return [nest]


def _pack(nest: Any, leaves: Iterator[Any]) -> Any:
    """Return a nest with other leaves, in the order of `_flatten`."""
    if isinstance(nest, dict):
        packed = {key: _pack(nest[key], leaves) for key in sorted(nest)}
        return {key: packed[key] for key in nest}
    if isinstance(nest, tuple):
        return tuple(_pack(part, leaves) for part in nest)
    return next(leaves)


def _row(nest: Any, i: int) -> Any:
    if isinstance(nest, dict):
        return {key: _row(value, i) for key, value in nest.items()}
    if isinstance(nest, tuple):
        return tuple(_row(value, i) for value in nest)
    return nest[i]


def _describe(parts: Any) -> str:
    if isinstance(parts, dict):
        inner = ", ".join(f"{key}: {_describe(value)}" for key, value in sorted(parts.items()))
        return f"Dict({inner})"
    if isinstance(parts, tuple):
        return f"Tuple({', '.join(map(_describe, parts))})"
    return str(parts)
