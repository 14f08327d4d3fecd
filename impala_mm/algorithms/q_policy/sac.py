"""SAC: soft actor-critic with several Q-networks and a trained temperature (arXiv 1812.05905).

REDQ (arXiv 2101.05982) and DroQ (arXiv 2110.02034) are SAC with other numbers of Q-networks and of
optimizer steps, or with dropout.
"""

import math
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.parts import lagrange
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.q_policy import actions as sac_actions
from impala_mm.algorithms.q_policy.algorithm import GOALS, POLICY, Group, Part, QPolicy
from impala_mm.algorithms.q_policy.networks import ChoiceCriticNetwork, CriticNetwork
from impala_mm.algorithms.q_policy.settings import SACSettings
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class SAC(QPolicy):
    """A policy that also earns by its entropy, weighed by a temperature."""

    settings = SACSettings
    draws = 2  # for the goals, and for the policy's loss
    _config: SACSettings

    def _prepare_actions(self, environment: EnvironmentSpec) -> None:
        self._kind = sac_actions.choose(self._config, environment)
        self._boxes, self.num_noise = self._kind.boxes, self._kind.num_noise
        self.masks = self._config.discrete_sac

    def _make_critics(self, environment: EnvironmentSpec) -> CriticNetwork:
        if not self._config.discrete_sac:
            return super()._make_critics(environment)
        return ChoiceCriticNetwork(self._config, environment, self._normaliser.mean)

    def _make_own(self, environment: EnvironmentSpec) -> None:
        start = math.log(self._config.temperature)
        self._log_temperature = tf.Variable(start, False, name="log_temperature", dtype=tf.float64)

    def _own_groups(self) -> dict[str, Group]:
        return {"temperature": Group([self._log_temperature], self._config.temperature_rate)}

    def _begin_update(self) -> None:
        if self._config.fixed_temperature:  # a checkpoint restores that of an earlier start
            self._log_temperature.assign(math.log(self._config.temperature))

    def _goals(self, part: Part) -> tf.Tensor:
        """Return the goals: rewards, and the soft values of what follows."""
        policy, features = self._after(part, self._policy)
        at = self._at(self._targets, features, GOALS)
        values, entropy = self._kind.expect(policy, at, self._noise(part, 0))
        values += tf.cast(tf.exp(self._log_temperature), values.dtype) * entropy
        return self._bootstrapped(part, values)

    def _policy_loss(
        self, part: Part, policy: Distribution
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the loss: what the policy misses of the soft value."""
        features = self._critics.unroll(part.before, part.states.critics)
        at = self._at(self._critics, features, POLICY)
        value, entropy = self._kind.expect(policy, at, self._noise(part, 1))
        weight = tf.cast(tf.exp(self._log_temperature), value.dtype)
        return part.mean(-weight * entropy - value), {"entropy": part.mean(entropy)}

    def _noise(self, part: Part, draw: int) -> Any:
        return part.noise[draw] if self.num_noise else ()

    def _after_policy(
        self, part: Part, metrics: dict[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Lower the temperature if the entropy exceeds its target, within a multiplier's limits."""
        entropy, log = metrics["entropy"], self._log_temperature
        temperature = tf.exp(log)
        if not self._config.fixed_temperature:
            target = tf.cast(self._kind.target_entropy(part.before.mask), entropy.dtype)
            wanted = part.mean(tf.broadcast_to(target, tf.shape(part.live)))
            gradients = [tf.cast(entropy - wanted, tf.float64)]
            optimizer = self._optimizers["temperature"]
            exchange.apply(optimizer, gradients, [log], "temperature", clipping=-1.0)
            least, most = math.log(lagrange.LEAST), math.log(lagrange.MOST)
            log.assign(tf.clip_by_value(log, least, most))
        return {"entropy": part.per_step(entropy), "temperature": temperature}
