"""The least and the largest entropy that a policy can have, by which targets are refused."""

import functools
import math

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.parts import action_policies
from impala_mm.environments.action_parts import Box, Part
from impala_mm.environments.actions import ActionSpec

_TOLERANCE = 0.005  # nats: limits of numbers are searched for, and not exact


def why_unreachable(target: float, actions: ActionSpec, box_policy: str) -> str:
    """Return why no policy of these actions has a mean entropy of `target`; empty if one may."""
    least, most = entropy_limits(actions, box_policy)
    if target > most + _TOLERANCE:
        limit = f"more than {most:.4g} nats of entropy: give a smaller"
    elif target < least - _TOLERANCE:
        limit = f"less than {least:.4g} nats of entropy: give a larger"
    else:
        return ""
    return f"no policy of {_in_words(actions)} has {limit} number, or leave the flag out"


def entropy_limits(actions: ActionSpec, box_policy: str) -> tuple[float, float]:
    """Return the least and the largest entropy of a policy without masks, in nats.

    That of choices is 0 to the logarithm of their number. The entropy of numbers is that of their
    density and of their bounds: the least follows from the least deviation, and the largest is
    infinite unless two bounds are a part of the distribution. Masks may lower the largest one.
    """
    each = [_limits(part, box_policy) for part in actions.leaves]
    return sum(least for least, _ in each), sum(most for _, most in each)


def _limits(part: Part, box_policy: str) -> tuple[float, float]:
    if not isinstance(part, Box):
        return 0.0, sum(math.log(n) for n in part.choices)
    kind = action_policies.box_policy(part, box_policy)
    ends = zip(*(np.ravel(bounds) for bounds in part.policy_bounds), strict=True)
    each = [_number_limits(float(low), float(high), kind) for low, high in ends]
    return sum(least for least, _ in each), sum(most for _, most in each)


@functools.cache
def _number_limits(low: float, high: float, box_policy: str) -> tuple[float, float]:
    """Return the limits of one number of a policy's action, by trying means and deviations."""
    number = ActionSpec(Box((1,), (low,), (high,)))
    policy = action_policies.choose(number, box_policy)
    bound = next((end for end in (low, high) if math.isfinite(end)), 0.0)
    middle = (low + high) / 2 if math.isfinite(high - low) else bound
    means, raw = middle + np.linspace(-12.0, 12.0, 97), np.linspace(-12.0, 12.0, 401)
    grid = np.stack(np.meshgrid(means, raw, indexing="ij"), -1)  # [97, 401, 2]
    entropies = policy.make(tf.constant(grid, tf.float64)).entropy().numpy()
    has_most = math.isfinite(high - low) and box_policy != "normal"
    return float(entropies.min()), float(entropies.max()) if has_most else math.inf


def _in_words(actions: ActionSpec) -> str:
    return " and ".join(str(part) for part in actions.leaves)
