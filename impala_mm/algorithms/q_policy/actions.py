"""Actions: numbers and choices, which differ in how SAC computes an expectation.

Of numbers, an expectation is that of one sample, whose gradient reaches the policy through the
sample. The entropy is exact, but for the slope of a hyperbolic tangent, which is that at the
sample's number before it. Of choices both are exact: sums over all of them (arXiv 1910.07207).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.q_policy.networks import AtFeatures
from impala_mm.algorithms.q_policy.settings import SACSettings
from impala_mm.environments.action_parts import Box, Discrete, MultiDiscrete
from impala_mm.environments.actions import ActionSpec, UnsuitableActions
from impala_mm.environments.types import EnvironmentSpec


class SoftValue(NamedTuple):
    """Expectations of a policy's action, [...]; the soft value adds the weighted entropy."""

    value: tf.Tensor  # by the Q-networks that count
    entropy: tf.Tensor  # in nats


class Numbers:
    """Actions that consist of Boxes."""

    def __init__(self, config: SACSettings, environment: EnvironmentSpec):
        self._actions = environment.actions
        self.boxes = [part for part in environment.actions.leaves if isinstance(part, Box)]
        self.num_noise = sum(part.num_features for part in self.boxes)
        self._target_entropy = config.target_entropy * self.num_noise

    def expect(self, policy: Any, at: AtFeatures, noise: Any) -> SoftValue:
        """Return the value of one sample, and the entropy, exact or of this sample.

        `noise` are standard normal numbers, [..., num_noise].
        """
        noises = split(self._actions, self.boxes, noise, flat=True)
        return SoftValue(at.value(policy.sample(noises)), policy.entropy(noises))

    def target_entropy(self, mask: Any) -> float:
        """Return the target, which is the same everywhere: numbers have no mask."""
        del mask
        return self._target_entropy


class Choices:
    """A Discrete or MultiDiscrete action."""

    boxes = ()
    num_noise = 0

    def __init__(self, config: SACSettings, environment: EnvironmentSpec):
        (part,) = environment.actions.leaves
        self._choices, self._share = part.choices, config.target_entropy_share

    def expect(self, policy: Any, at: AtFeatures, noise: Any) -> SoftValue:
        """Return the mean over all choices, and the policy's entropy.

        Of several choices only the sum is a value, of which each network may give other shares to
        each choice. So there the lesser one of two means counts, and of one choice the mean of the
        lesser values (arXiv 1910.07207).
        """
        del noise
        values = at.all_values()
        if len(self._choices) > 1:
            value = at.combine(policy.mean(values))
        else:
            value = policy.mean(at.combine(values))
        return SoftValue(value, policy.entropy())

    def target_entropy(self, mask: Any) -> Any:
        """Return a share of the largest entropy of a policy over the choices that are allowed."""
        if isinstance(mask, tuple):
            return self._share * sum(math.log(n) for n in self._choices)
        allowed = [
            tf.math.count_nonzero(each, -1, dtype=tf.float32)
            for each in tf.split(mask, self._choices, -1)
        ]
        # Where a mask allows nothing, it counts as one that allows everything (see `masking`).
        numbers = [
            tf.where(count > 0, count, float(n))
            for count, n in zip(allowed, self._choices, strict=True)
        ]
        return self._share * tf.add_n([tf.math.log(number) for number in numbers])


def choose(config: SACSettings, environment: EnvironmentSpec) -> Numbers | Choices:
    """Return the kind of an environment's actions; raise UnsuitableActions if SAC has none."""
    actions, takes = environment.actions, _takes(environment)
    if all(isinstance(part, Box) for part in actions.leaves):
        if config.discrete_sac:
            raise UnsuitableActions(
                f"--discrete_sac chooses among choices (Discrete, MultiDiscrete), and {takes}: "
                f"leave it out, or make choices of the numbers by --discretization=lin"
            )
        return Numbers(config, environment)
    choices = isinstance(actions.parts, Discrete | MultiDiscrete)
    if choices and config.discrete_sac:
        return Choices(config, environment)
    if config.discrete_sac:
        raise UnsuitableActions(
            f"--discrete_sac chooses a Discrete or MultiDiscrete action, and {takes}: use "
            f"--algorithm=ppo"
        )
    remedy = "set --discrete_sac, or use --algorithm=dqn or ppo"
    raise UnsuitableActions(
        f"SAC chooses numbers (Box), and {takes}: {remedy if choices else 'use --algorithm=ppo'}"
    )


def bounded_boxes(environment: EnvironmentSpec, algorithm: str) -> list[Box]:
    """Return the actions' Boxes; raise UnsuitableActions unless all are bounded Boxes."""
    leaves = environment.actions.leaves
    boxes = [part for part in leaves if isinstance(part, Box) and part.rescaled.all()]
    if len(boxes) < len(leaves):
        raise UnsuitableActions(
            f"{algorithm} chooses numbers between two bounds (Box), and {_takes(environment)}: use "
            f"--algorithm=ppo"
        )
    return boxes


def _takes(environment: EnvironmentSpec) -> str:
    """Return which actions an environment takes, as the end of a sentence."""
    shown = environment.actions.describe()
    shown = f"one of {shown} actions (Discrete)" if isinstance(shown, int) else shown
    return f"{environment.level_name} takes {shown}"


def draw_numbers(boxes: Sequence[Box], like: Any) -> Any:
    """Return random numbers within the bounds; those without bounds are as in `like`."""
    drawn = [
        tf.where(part.rescaled, tf.random.uniform(tf.shape(x), -1.0, 1.0), x)
        for part, x in zip(boxes, tf.nest.flatten(like), strict=True)
    ]
    return tf.nest.pack_sequence_as(like, drawn)


def split(actions: ActionSpec, boxes: Sequence[Box], numbers: tf.Tensor, flat: bool = False) -> Any:
    """Return numbers [..., N] as actions: a nest of the boxes' shapes, or `flat` of [..., n]."""
    parts = tf.split(numbers, [box.num_features for box in boxes], -1)
    if not flat:
        leading = tf.shape(numbers)[:-1]
        parts = [
            tf.reshape(x, tf.concat([leading, box.shape], 0))
            for x, box in zip(parts, boxes, strict=True)
        ]
    return actions.pack(parts)


def squared_distance(some: Any, others: Any) -> tf.Tensor:
    """Return the sums of squared differences [T, B] of numbers, nests of [T, B, ...]."""
    squares = [
        tf.square(a - tf.cast(b, a.dtype))
        for a, b in zip(tf.nest.flatten(some), tf.nest.flatten(others), strict=True)
    ]
    return tf.add_n([tf.reduce_sum(x, range(2, x.shape.rank)) for x in squares])
