"""Advantages and value targets of an unroll: generalised advantages, V-trace, n-step returns.

An algorithm makes one estimator by --advantages, and calls it with the transitions and values of a
batch:

    estimate = advantages.make(config)
    estimates = estimate(steps, values, log_ratios)         for losses.transitions(...), [T, B]

All of them keep to the step convention of `data/trajectory.py`, which `losses.transitions` applies.
After a termination no return follows. A truncation does not end the return: the value of the
episode's last observation takes the place of what would have followed, as that of the unroll's last
entry does. Where a transition is not live, the advantage is 0 and the target is the value itself.
"""

from typing import NamedTuple, Protocol

import tensorflow as tf

from impala_mm.algorithms.parts import vtrace
from impala_mm.algorithms.parts.advantage_settings import AdvantageSettings
from impala_mm.algorithms.parts.losses import Transitions


class Estimates(NamedTuple):
    """The estimates for the transitions of a batch, which carry no gradient."""

    # float32 [T, B]: the gain by each action over the policy's mean. Where another policy chose the
    # action, the policy's loss must weigh it by the importance ratio of this step.
    advantages: tf.Tensor
    value_targets: tf.Tensor  # float32 [T, B]


class Estimator(Protocol):
    """A function from transitions to estimates."""

    def __call__(self, steps: Transitions, values: tf.Tensor, log_ratios: tf.Tensor) -> Estimates:
        """Return the estimates of the transitions [T, B].

        `values` [T+1, B] are those that `losses.transitions` received, and finite. `log_ratios`
        [T, B] are the logarithms of the ratios of the actions' probabilities, under the policy that
        learns and the one that played; only V-trace reads them.
        """


def make(config: AdvantageSettings) -> Estimator:
    """Return the estimator that the flags describe."""
    if config.advantages == "vtrace":
        return VTrace(config.vtrace_lambda, config.clip_rho_threshold, config.clip_c_threshold)
    if config.advantages == "n_step":
        return NStep(config.n_steps)
    return GeneralisedAdvantages(config.gae_lambda)


class GeneralisedAdvantages(NamedTuple):
    """Generalised advantages (arXiv 1506.02438), as if the policy that learns had played."""

    lambda_: float = 0.95

    def __call__(self, steps: Transitions, values: tf.Tensor, log_ratios: tf.Tensor) -> Estimates:
        """Return sums of the one-step errors, later ones discounted by gamma x lambda."""
        del log_ratios
        values = tf.stop_gradient(values)
        errors = steps.rewards + steps.discounts * values[1:] - values[:-1]
        advantages = vtrace.discounted_suffix_sums(errors, steps.discounts * self.lambda_)
        return Estimates(advantages, advantages + values[:-1])


class VTrace(NamedTuple):
    """V-trace (arXiv 1802.01561): returns of another policy, corrected by truncated ratios."""

    lambda_: float = 1.0
    clip_rho_threshold: float | None = 1.0
    clip_c_threshold: float | None = 1.0

    def __call__(self, steps: Transitions, values: tf.Tensor, log_ratios: tf.Tensor) -> Estimates:
        """Return V-trace's targets vs_t, and r_t + discount_t vs_{t+1} - V_t as advantages."""
        values = tf.stop_gradient(values)
        targets = vtrace.from_importance_weights(
            tf.where(steps.live, log_ratios, 0.0),
            steps.discounts,
            steps.rewards,
            values[:-1],
            values[-1],
            clip_rho_threshold=self.clip_rho_threshold,
            lambda_=self.lambda_,
            clip_c_threshold=self.clip_c_threshold,
        ).vs
        following = tf.concat([targets[1:], values[-1:]], 0)
        return Estimates(steps.rewards + steps.discounts * following - values[:-1], targets)


class NStep(NamedTuple):
    """Returns of n steps followed by a value; fewer steps where the unroll ends before."""

    n: int = 5

    def __call__(self, steps: Transitions, values: tf.Tensor, log_ratios: tf.Tensor) -> Estimates:
        """Return the n-step returns as targets, and what they exceed the values by."""
        del log_ratios
        values = tf.stop_gradient(values)
        length = steps.rewards.shape[0]
        if length is not None and self.n >= length:  # all reach the unroll's end
            return GeneralisedAdvantages(1.0)(steps, values, steps.rewards)
        returns = values  # of 0 steps
        for _ in range(self.n):
            longer = steps.rewards + steps.discounts * returns[1:]
            returns = tf.concat([longer, values[-1:]], 0)
        return Estimates(returns[:-1] - values[:-1], returns[:-1])
