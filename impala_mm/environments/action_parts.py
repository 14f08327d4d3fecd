"""The parts of an action: one for each of gymnasium's spaces that are not made of others.

`actions.ActionSpec` joins them, and explains what a policy's actions are.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

_ENDLESS = 1e10  # a bound beyond it is none: no policy explores such a range


@dataclasses.dataclass(frozen=True)
class Discrete:
    """One choice among `n`."""

    n: int
    start: int = 0  # the environment's number of choice 0

    shape = ()
    policy_dtype = "int32"

    @property
    def choices(self) -> tuple[int, ...]:
        """The numbers of choices that a mask can forbid, one for each element."""
        return (self.n,)

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
    def choices(self) -> tuple[int, ...]:
        """The numbers of choices that a mask can forbid, one for each element."""
        return self.n

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
    def choices(self) -> tuple[int, ...]:
        """The numbers of choices that a mask can forbid: 0 and 1 for each element."""
        return (2,) * self.num_features

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
    choices: ClassVar[tuple[int, ...]] = ()  # numbers have no mask

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
        if np.dtype(self.dtype).kind in "iu":
            numbers = tf.round(numbers)
        return tf.clip_by_value(numbers, _f(self._lows), _f(self._highs))

    def from_environment_units(self, actions: "tf.Tensor") -> "tf.Tensor":
        """Return the inverse of `in_environment_units`."""
        return (actions - _f(self.middle)) / _f(np.where(self.scale > 0, self.scale, 1))

    def features(self, action: "tf.Tensor", first: "tf.Tensor") -> "tf.Tensor":
        """Return the actions [N, ...], within the bounds, as vectors [N, D]; zeros where `first`.

        A policy may choose numbers beyond the bounds, which the environment never sees.
        """
        import tensorflow as tf  # noqa: PLC0415

        low, high = (np.ravel(ends) for ends in self.policy_bounds)
        numbers = tf.clip_by_value(_flat(action, self.shape), low, high)
        return tf.where(first[:, None], 0.0, numbers)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [E, ...] as the environment takes them; never beyond its bounds."""
        numbers = actions * self.scale + self.middle  # in float64
        if np.dtype(self.dtype).kind in "iu":
            numbers = np.rint(numbers)
        # np.clip takes twice as long for so few numbers.
        return np.minimum(np.maximum(numbers, self._lows), self._highs).astype(self.dtype)

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


def _f(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float32)


def _flat(action: "tf.Tensor", shape: tuple[int, ...]) -> "tf.Tensor":
    """Return actions [N, *shape] as vectors [N, D]."""
    import tensorflow as tf  # noqa: PLC0415

    return action if len(shape) == 1 else tf.reshape(action, [-1, int(np.prod(shape))])
