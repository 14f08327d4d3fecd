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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from impala_mm.environments import nests
from impala_mm.environments.action_parts import Box, Discrete, Part

if TYPE_CHECKING:
    import tensorflow as tf


class UnsuitableActions(ValueError):
    """An action space that an algorithm does not support; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """The actions of an environment: a `Part`, or a dict or tuple of these, nested."""

    parts: Any

    @functools.cached_property
    def leaves(self) -> list[Part]:
        """The parts, in the order of `tf.nest.flatten`."""
        return nests.flatten(self.parts)

    @functools.cached_property
    def specs(self) -> Any:
        """The specs of one action: nest of tf.TensorSpec."""
        import tensorflow as tf  # noqa: PLC0415

        return self.pack([tf.TensorSpec(p.shape, tf.as_dtype(p.policy_dtype)) for p in self.leaves])

    @functools.cached_property
    def mask_specs(self) -> Any:
        """The specs of a mask (see `masks`): nest of tf.TensorSpec, with () for each Box."""
        import tensorflow as tf  # noqa: PLC0415

        choices = [sum(part.choices) for part in self.leaves]
        return self.pack([tf.TensorSpec([n], tf.bool) if n else () for n in choices])

    @property
    def discrete(self) -> int | None:
        """The number of choices if an action is a single choice, else None."""
        return self.parts.n if isinstance(self.parts, Discrete) else None

    @property
    def has_box(self) -> bool:
        """Whether an action contains the numbers of a Box."""
        return any(isinstance(part, Box) for part in self.leaves)

    @property
    def num_features(self) -> int:
        """The number of features of an action."""
        return sum(part.num_features for part in self.leaves)

    def pack(self, flat: Sequence[Any]) -> Any:
        """Return a list with something for each part as a nest like an action."""
        return nests.pack(self.parts, flat)

    def as_arrays(self, actions: Any) -> Any:
        """Return actions, a nest of arrays or lists [N, ...], as arrays of a policy's types."""
        if isinstance(self.parts, Part):  # `actions` may be a list, which is not a nest here
            return np.asarray(actions, self.parts.policy_dtype)
        pairs = zip(self.leaves, nests.flatten(actions), strict=True)
        return self.pack([np.asarray(leaf, part.policy_dtype) for part, leaf in pairs])

    def zeros(self, count: int) -> Any:
        """Return `count` actions of zeros: nest of NumPy arrays [count, ...]."""
        return self.pack([np.zeros([count, *p.shape], p.policy_dtype) for p in self.leaves])

    def sample(
        self, count: int, masks: Any, random: np.random.Generator, reach: float = 1.0
    ) -> Any:
        """Return `count` random actions of a policy, a nest of [count, ...], that masks allow.

        `masks` are those of a `Step`, or () to allow everything. Numbers are from -reach to reach,
        or the nearest that the bounds allow.
        """
        given, leaves = iter(nests.flatten(masks)), []
        for part in self.leaves:
            if isinstance(part, Box):
                numbers = reach * (2 * random.random((count, *part.shape), np.float32) - 1)
                leaves.append(np.clip(numbers, *part.policy_bounds))
                continue
            mask = next(given, np.ones((count, sum(part.choices)), bool))
            elements = np.split(mask, np.cumsum(part.choices)[:-1], axis=1)
            # 1 - a number is above 0, so that none is drawn that is not allowed.
            chosen = [(each * (1 - random.random(each.shape))).argmax(1) for each in elements]
            leaves.append(np.stack(chosen, 1).reshape(count, *part.shape).astype(np.int32))
        return self.pack(leaves)

    def features(self, action: Any, first: "tf.Tensor") -> "tf.Tensor":
        """Return what a network reads of actions: float32 [N, F], zeros where `first`, bool [N]."""
        import tensorflow as tf  # noqa: PLC0415

        read = [
            part.features(leaf, first)
            for part, leaf in zip(self.leaves, nests.flatten(action), strict=True)
        ]
        return read[0] if len(read) == 1 else tf.concat(read, -1)

    def to_environments(self, actions: Any) -> Any:
        """Return a policy's actions [E, ...] as a sequence of E actions that environments take."""
        batch = self.as_batch(actions)
        if isinstance(self.parts, Part):
            return batch
        return [nests.row(batch, i) for i in range(len(nests.flatten(batch)[0]))]

    def as_batch(self, actions: Any) -> Any:
        """Return a policy's actions [E, ...] in the environment's units: a nest of [E, ...]."""
        if isinstance(self.parts, Part):
            return self.parts.to_environment(actions)
        pairs = zip(self.leaves, nests.flatten(actions), strict=True)
        return self.pack([part.to_environment(leaf) for part, leaf in pairs])

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
        pairs = zip(self.leaves, nests.flatten(actions), strict=True)
        return self.pack([function(p, x) if isinstance(p, Box) else x for p, x in pairs])

    def describe(self) -> int | str:
        """Return the actions for messages and checkpoints: a number if it is a single choice."""
        return self.parts.n if isinstance(self.parts, Discrete) else nests.describe(self.parts)
