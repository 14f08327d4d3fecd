"""MPO: maximum a posteriori policy optimisation (arXiv 1806.06920, 1812.02256).

    slow copy of the policy -- K actions per observation -- values by the slow copies of Q-networks
        their mean               the Q-networks' goals
        softmax(values / eta)    weights of the actions, whose weighted log-likelihood the policy
                                 raises, and stays near its slow copy

Each limit of a divergence has a dual variable: eta of the weights', and one of the mean's and one
of the deviation's, for each number of an action. The gradient of each is its limit less the
divergence.
"""

import math

import tensorflow as tf

from impala_mm.algorithms.parts import distributions, normals
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.parts.normals import Normal
from impala_mm.algorithms.q_policy import actions
from impala_mm.algorithms.q_policy.algorithm import GOALS, POLICY, Group, Part, QPolicy
from impala_mm.algorithms.q_policy.settings import MPOSettings
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec

# Those of Acme's MPO: the first costs of divergences, and the least number before the softplus.
_COST_OF_MEAN, _COST_OF_DEVIATION, _LEAST = 10.0, 1000.0, -18.0


class MPO(QPolicy):
    """A normal policy that learns from actions of its slow copy, weighed by their values."""

    settings = MPOSettings
    copies_policy = True
    copies_wait = True
    _config: MPOSettings

    def _make_own(self, environment: EnvironmentSpec) -> None:
        """Make the dual variables: of the weights, the means and the deviations, in this order."""
        config, d = self._config, self.num_noise
        self.draws = 2 * config.action_samples  # after the steps, and before them
        of_weights = [config.target_weight_kl]
        if config.target_bounds_kl:  # a second objective with weights of its own
            of_weights.append(config.target_bounds_kl)
        of_policy = [config.target_mean_kl] * d + [config.target_deviation_kl] * d
        self._limits = [*of_weights, *of_policy]
        starts = [config.temperature] * len(of_weights)
        starts += [_COST_OF_MEAN] * d + [_COST_OF_DEVIATION] * d
        before = [start + math.log(-math.expm1(-start)) for start in starts]  # the softplus
        self._duals = tf.Variable(before, trainable=False, name="duals", dtype=tf.float64)

    def _own_groups(self) -> dict[str, Group]:
        return {"duals": Group([self._duals], self._config.dual_rate)}

    def _goals(self, part: Part) -> tf.Tensor:
        """Return the goals: rewards, and the mean value of the slow copy's actions."""
        policy, features = self._after(part, self._target_policy)
        numbers = _normal(policy).sample(part.noise[: self._config.action_samples])
        values = self._values(features, numbers, GOALS)
        return self._bootstrapped(part, tf.reduce_mean(values, 0))

    def _values(self, features: tf.Tensor, numbers: tf.Tensor, use: int) -> tf.Tensor:
        """Return the slow copies' values [K, T, B] of actions [K, T, B, D]."""
        features = tf.tile(features[None], [self._config.action_samples, 1, 1, 1])
        at = self._at(self._targets, features, use)
        return at.value(actions.split(self._actions, self._boxes, numbers))

    def _policy_loss(
        self, part: Part, policy: Distribution
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the loss: the weighted log-likelihood, and the costs of divergences."""
        old = _normal(self._target_policy.unroll(part.before, part.states.policy))
        new = _normal(policy)
        numbers = old.sample(part.noise[self._config.action_samples :])  # [K, T, B, D]
        features = self._targets.unroll(part.before, part.states.critics)
        objectives = [tf.cast(self._values(features, numbers, POLICY), numbers.dtype)]
        if self._config.target_bounds_kl:
            objectives.append(-tf.norm(tf.nn.relu(tf.abs(numbers) - 1.0), axis=-1))
        duals = tf.cast(tf.nn.softplus(self._duals), numbers.dtype)
        n = len(objectives)
        weighed = [weigh(objectives[i], duals[i]) for i in range(n)]
        weights = tf.add_n([each for each, _ in weighed])
        # Two policies that differ from the copy only in the mean, or only in the deviation.
        likely = Normal(new.mean, old.deviation).log_prob(numbers)
        likely += Normal(old.mean, new.deviation).log_prob(numbers)
        gained = part.mean(tf.reduce_sum(weights * likely, 0))
        apart = tf.concat(normals.decoupled_kl(old, new), -1)  # [T, B, 2D]
        divergences = tf.stack([part.mean(each) for each in tf.unstack(apart, axis=-1)])
        of_weights = tf.stack([part.mean(divergence) for _, divergence in weighed])
        measured = tf.concat([of_weights, divergences], 0)
        metrics = {"entropy": part.mean(new.entropy()), "divergences": measured}
        return tf.reduce_sum(duals[n:] * divergences) - gained, metrics

    def _after_policy(
        self, part: Part, metrics: dict[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Raise the dual variables of divergences beyond their limits, and lower the others."""
        measured, duals = tf.cast(metrics["divergences"], tf.float64), self._duals
        temperature = tf.nn.softplus(duals[0])
        # In units of the limits, for Adam's epsilon.
        errors = part.mean(tf.ones_like(part.live, tf.float64)) - measured / self._limits
        gradients = [tf.sigmoid(duals) * errors]
        exchange.apply(self._optimizers["duals"], gradients, [duals], "duals", clipping=-1.0)
        duals.assign(tf.maximum(duals, _LEAST))
        of_means, of_deviations = tf.split(measured[-2 * self.num_noise :], 2)
        found = {
            "entropy": metrics["entropy"],
            "kl_weights": measured[0],
            "kl_means": tf.reduce_mean(of_means),
            "kl_deviations": tf.reduce_mean(of_deviations),
        }
        return {name: part.per_step(x) for name, x in found.items()} | {"temperature": temperature}


def weigh(values: tf.Tensor, temperature: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return weights of K actions by their values [K, ...], and the divergence from equal ones."""
    logs = tf.nn.log_softmax(values / temperature, 0)
    weights = tf.exp(logs)
    return weights, tf.reduce_sum(weights * logs, 0) + math.log(values.shape[0])


def _normal(policy: Distribution) -> Normal:
    """Return the joint distribution of all numbers [..., D] of an action."""
    parts = distributions.vectors(policy)
    return Normal(*(tf.concat([getattr(p, n) for p in parts], -1) for n in ("mean", "deviation")))
