"""The distribution of a policy's actions for an action space, and the head that computes it.

    Discrete        Categorical               its logits
    MultiDiscrete   MultiCategorical          the logits of each choice
    MultiBinary     Bernoulli                 a logit for each decision
    Box             Normal, ClippedNormal,    a mean and a deviation for each number; a mean alone,
                    TanhNormal                if the policy is "noisy"
    Dict, Tuple     Joint                     those of the parts, one after the other

A Normal ignores a Box's bounds: the action that it draws is recorded, and judged, as it was drawn;
only what the environment takes and what the network reads of it is clipped. A number at a bound of
a ClippedNormal stands for all numbers beyond it, so that its log-probability, and with it the
gradient, vanishes where the mean is far beyond the bound: such a policy never returns. That of a
Normal grows with the distance; it has nothing to learn from, either, where all of its actions are
clipped to the same bound.

If the environment offers masks, forbidden choices have the probability 0; a masked MultiBinary has
a MultiCategorical of two choices each.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import losses, masking
from impala_mm.algorithms.parts.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Joint,
    MultiCategorical,
    Shaped,
)
from impala_mm.algorithms.parts.normals import ClippedNormal, Normal, TanhNormal
from impala_mm.algorithms.types import PolicyOutput
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete, Part
from impala_mm.environments.actions import ActionSpec

BOX_POLICIES = ("clipped", "tanh", "normal", "noisy")
DEVIATIONS = ("shared", "learnt")
# Deviations in the policy's units, where actions are from -1 to 1.
_INITIAL, _LEAST, _NOISE = 0.6, 0.02, 0.1


class PolicyDistribution(NamedTuple):
    """The kind of a policy's distribution."""

    # From parameters [..., P] and optionally a mask of the actions: a nest of bool [..., N] like
    # `EnvironmentSpec.masks`.
    make: Callable[..., Distribution]
    num_parameters: int  # P
    shared: tuple[int, ...]  # numbers of those that do not depend on the observation


def choose(
    actions: ActionSpec, box: str = "clipped", deviation: str | float = "shared"
) -> PolicyDistribution:
    """Return the distribution for these actions.

    `box`, one of BOX_POLICIES, is that of a Box with bounds. `deviation`, one of DEVIATIONS, says
    whether the deviations of a Box's numbers are the same for all observations; a number is that of
    a noisy policy, instead of 0.1.
    """
    parts = [_part(leaf, box, deviation) for leaf in actions.leaves]
    ends = np.cumsum([0, *(part.num_parameters for part in parts)]).tolist()
    shared = [begin + i for begin, part in zip(ends, parts, strict=False) for i in part.shared]

    def make(parameters: tf.Tensor, mask: Any = ()) -> Distribution:
        given = iter(tf.nest.flatten(mask))
        masks = [next(given, ()) if leaf.choices else () for leaf in actions.leaves]
        if len(parts) == 1:
            made = [parts[0].make(parameters, masks[0])]
        else:
            made = [
                part.make(parameters[..., begin:end], each)
                for part, each, begin, end in zip(parts, masks, ends[:-1], ends[1:], strict=True)
            ]
        alone = len(parts) == 1 and not tf.nest.is_nested(actions.parts)
        return made[0] if alone else Joint(actions.pack(made))

    return PolicyDistribution(make, ends[-1], tuple(shared) if deviation == "shared" else ())


class PolicyHead(snt.Module):
    """A linear layer from features to a distribution's parameters, of which some are shared.

    The shared ones are variables, the same for all features.
    """

    def __init__(self, distribution: PolicyDistribution, init_scale: float):
        super().__init__(name="policy")
        p, shared = distribution.num_parameters, np.array(distribution.shared, int)
        self._linear = linear_head(p - len(shared), init_scale)
        self._shared = tf.Variable(tf.zeros([len(shared)]), name="deviations")
        own = np.setdiff1d(np.arange(p), shared)
        order = np.concatenate([own, shared])
        self._order = None if (order == np.arange(p)).all() else np.argsort(order)

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Return the parameters [N, P] for features [N, F]."""
        own = self._linear(features)
        shared = tf.broadcast_to(self._shared, [tf.shape(own)[0], *self._shared.shape])
        both = tf.concat([own, shared], -1)
        return both if self._order is None else tf.gather(both, self._order, axis=-1)


def draw(policy: Distribution, exploration: tf.Tensor) -> Any:
    """Return actions [B, ...] for `act`: samples, and modes where `exploration` [B] is 0."""
    known = tf.get_static_value(exploration)
    if known is not None and (known > 0).all():
        return policy.sample()
    return tf.nest.map_structure(
        lambda drawn, likely: losses.select(exploration > 0, drawn, likely),
        policy.sample(),
        policy.mode(),
    )


def output(
    actions: ActionSpec, parameters: tf.Tensor, value: tf.Tensor, mask: Any = ()
) -> PolicyOutput:
    """Return what `judge` returns, from a policy's parameters [..., P] and values [...].

    `mask` is that of the entries: the probabilities of Discrete actions respect it.
    """
    policy = parameters
    if actions.discrete is not None:
        policy = tf.nn.softmax(masking.allowed_only(parameters, mask))
    return PolicyOutput(policy, value, parameters)


def make_head(distribution: PolicyDistribution, init_scale: float = 0.01) -> snt.Module:
    """Return a module from features [N, F] to a distribution's parameters [N, P].

    `init_scale` is that of its initial weights. A small one makes the first policy near even.
    """
    if not distribution.shared:
        return linear_head(distribution.num_parameters, init_scale)
    return PolicyHead(distribution, init_scale)


def linear_head(size: int, init_scale: float) -> snt.Linear:
    """Return a linear layer with orthogonal initial weights of this scale."""
    start = snt.initializers.Orthogonal(init_scale)
    return snt.Linear(size, w_init=start, name="policy_logits")


def _part(leaf: Part, box: str, deviation: str | float) -> PolicyDistribution:
    """Return the distribution of one part of an action."""
    if isinstance(leaf, Discrete):
        return PolicyDistribution(categorical, leaf.n, ())
    size = leaf.num_features
    shared: tuple[int, ...] = ()
    if isinstance(leaf, MultiDiscrete):
        make: Callable[..., Distribution] = lambda p, mask: MultiCategorical(p, leaf.n, mask)  # noqa: E731
    elif isinstance(leaf, MultiBinary):
        make = _decisions
    elif box_policy(leaf, box) == "noisy":
        make = functools.partial(_noisy, _NOISE if isinstance(deviation, str) else deviation)
    else:
        make, shared = _box(leaf, box), tuple(range(size, 2 * size))
    shape = leaf.shape
    if len(shape) == 1:
        return PolicyDistribution(make, size + len(shared), shared)
    return PolicyDistribution(
        lambda p, mask: Shaped(make(p, mask), shape), size + len(shared), shared
    )


def categorical(logits: tf.Tensor, mask: Any = ()) -> Categorical:
    """Return the distribution over A choices with logits [..., A] and a mask, bool [..., A]."""
    return Categorical(masking.allowed_only(logits, mask))


def _decisions(logits: tf.Tensor, mask: Any) -> Distribution:
    """Return the distribution of K decisions with logits [..., K]."""
    if isinstance(mask, tuple):
        return Bernoulli(logits)
    pairs = tf.stack([tf.zeros_like(logits), logits], -1)  # sigmoid(x) is softmax([0, x])[1]
    k = logits.shape[-1]
    flat = tf.reshape(pairs, tf.concat([tf.shape(logits)[:-1], [2 * k]], 0))
    return MultiCategorical(tf.ensure_shape(flat, [*logits.shape[:-1], 2 * k]), (2,) * k, mask)


def _noisy(deviation: float, parameters: tf.Tensor, mask: Any) -> Distribution:
    """Return the distribution of numbers around hyperbolic tangents of parameters [..., D]."""
    ends = np.array(-1.0), np.array(1.0)
    return ClippedNormal(tf.tanh(parameters), deviation * tf.ones_like(parameters), *ends)


def box_policy(leaf: Box, box: str) -> str:
    """Return which of BOX_POLICIES a Box has: tanh and noisy need two bounds of each number."""
    return "clipped" if box in ("tanh", "noisy") and not leaf.rescaled.all() else box


def _box(leaf: Box, box: str) -> Callable[..., Distribution]:
    """Return a function from [..., 2D] to the distribution of a Box's numbers."""
    if box not in BOX_POLICIES:
        raise ValueError(f"the policy of a Box {box!r} is none of {', '.join(BOX_POLICIES)}")
    low, high = (np.ravel(ends) for ends in leaf.policy_bounds)

    def make(parameters: tf.Tensor, mask: Any) -> Distribution:
        mean, raw = tf.split(parameters, 2, axis=-1)
        # softplus, so that large values grow no faster than linearly
        deviation = _LEAST + tf.nn.softplus(raw + math.log(math.expm1(_INITIAL - _LEAST)))
        kind = box_policy(leaf, box)
        if kind == "normal":
            return Normal(mean, deviation)
        if kind == "tanh":
            return TanhNormal(mean, deviation)
        return ClippedNormal(mean, deviation, low, high)

    return make


_TOLERANCE = 0.005  # nats: limits of numbers are searched for, and not exact


def why_unreachable(target: float, actions: ActionSpec, kind: str) -> str:
    """Return why no policy of these actions has a mean entropy of `target`; empty if one may."""
    least, most = entropy_limits(actions, kind)
    if target > most + _TOLERANCE:
        limit = f"more than {most:.4g} nats of entropy: give a smaller"
    elif target < least - _TOLERANCE:
        limit = f"less than {least:.4g} nats of entropy: give a larger"
    else:
        return ""
    return f"no policy of {_in_words(actions)} has {limit} number, or leave the flag out"


def entropy_limits(actions: ActionSpec, kind: str) -> tuple[float, float]:
    """Return the least and the largest entropy of a policy without masks, in nats.

    That of choices is 0 to the logarithm of their number. The entropy of numbers is that of their
    density and of their bounds: the least follows from the least deviation (a hyperbolic tangent
    has none), and the largest is infinite unless two bounds are a part of the distribution. Masks
    may lower the largest one.
    """
    each = [_limits(part, kind) for part in actions.leaves]
    return sum(least for least, _ in each), sum(most for _, most in each)


def _limits(part: Part, kind: str) -> tuple[float, float]:
    if not isinstance(part, Box):
        return 0.0, sum(math.log(n) for n in part.choices)
    of_part = box_policy(part, kind)
    ends = zip(*(np.ravel(bounds) for bounds in part.policy_bounds), strict=True)
    each = [_number_limits(float(low), float(high), of_part) for low, high in ends]
    return sum(least for least, _ in each), sum(most for _, most in each)


@functools.cache
def _number_limits(low: float, high: float, kind: str) -> tuple[float, float]:
    """Return the limits of one number of a policy's action, by trying means and deviations."""
    number = ActionSpec(Box((1,), (low,), (high,)))
    policy = choose(number, kind)
    bound = next((end for end in (low, high) if math.isfinite(end)), 0.0)
    middle = (low + high) / 2 if math.isfinite(high - low) else bound
    means, raw = middle + np.linspace(-12.0, 12.0, 97), np.linspace(-12.0, 12.0, 401)
    grid = np.stack(np.meshgrid(means, raw, indexing="ij"), -1)  # [97, 401, 2]
    parameters = tf.constant(grid[..., : policy.num_parameters], tf.float64)
    entropies = policy.make(parameters).entropy().numpy()
    has_most = math.isfinite(high - low) and kind != "normal"
    has_least = kind != "tanh"  # the further its mean is beyond a bound, the less it is
    return (
        float(entropies.min()) if has_least else -math.inf,
        float(entropies.max()) if has_most else math.inf,
    )


def _in_words(actions: ActionSpec) -> str:
    return " and ".join(str(part) for part in actions.leaves)
