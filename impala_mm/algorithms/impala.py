"""IMPALA: actor-critic with V-trace (arXiv 1802.01561), for discrete actions.

The actor records the logits it acted by; the learner corrects for the updates made since.

The baseline's squared errors count in units of their own running mean where that is above 1. Where
returns are large (CartPole's reach 500) they drown the policy's gradient otherwise and throw the
policy about: by 0.3 nats per action between acting and learning in CartPole, by 0.01 so.
"""

from typing import Any

import sonnet as snt
import tensorflow as tf

import nets
from impala_mm import losses, optimizers
from impala_mm.algorithms import Context, Judgement, Variables, entry_spec
from impala_mm.config import Config
from impala_mm.distributions import Categorical
from impala_mm.environments import EnvironmentSpec
from impala_mm.exchange import Exchange
from impala_mm.trajectory import Batch, Entry, UnrollSpec

_PACE = 0.01  # at which the mean of squared errors moves towards that of each batch


def make(config: Config, environment: EnvironmentSpec) -> "Impala":
    """The algorithm for this environment."""
    return Impala(config, environment)


class Impala:
    """A network with two heads, its optimizer, and V-trace between them."""

    max_lag = None

    def __init__(self, config: Config, environment: EnvironmentSpec):
        self._config = config
        self._network = nets.make(
            config.agent_name,
            environment.observation,
            environment.num_actions,
            environment.frame_stack,
            config.precision,
        )
        self._policy_head = snt.Linear(
            environment.num_actions, w_init=snt.initializers.Orthogonal(0.01), name="policy_logits"
        )
        self._baseline_head = snt.Linear(1, name="baseline")
        self._optimizer = optimizers.make(
            config.optimizer, config.learning_rate, config.decay, config.momentum, config.epsilon
        )
        logits = tf.TensorSpec([environment.num_actions], tf.float32)
        step = entry_spec(environment, extras=logits)
        start = tf.nest.map_structure(
            lambda state: tf.TensorSpec(state.shape[1:], state.dtype), self.initial_state(1)
        )
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=start)

        for head in (self._policy_head, self._baseline_head):  # creates their variables
            head(tf.zeros([1, self._network.num_features]))
        modules = (self._network, self._policy_head, self._baseline_head)
        trained = [v for module in modules for v in module.trainable_variables]
        self._optimizer.initialize(trained)
        self._squared_error = tf.Variable(1.0, trainable=False, name="squared_error")
        carried = [*self._optimizer.variables, self._squared_error]
        self.variables = Variables(trained=trained, carried=carried, acting=trained)

    def initial_state(self, batch: int) -> Any:
        """The core's state at the start of an episode."""
        return self._network.initial_state(batch)

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """Samples from the policy, or takes its most likely action where exploration is 0."""
        features, core_state = self._read(entry, core_state)
        logits = self._policy_head(features)
        policy = Categorical(logits)
        action = tf.where(exploration > 0, policy.sample(), policy.mode())
        return action, core_state, logits

    def judge(self, entry: Entry, core_state: Any) -> Judgement:
        """The policy and the baseline."""
        features, _ = self._read(entry, core_state)
        policy = tf.nn.softmax(self._policy_head(features))
        return Judgement(policy, tf.squeeze(self._baseline_head(features), -1))

    def _read(self, entry: Entry, core_state: Any) -> tuple[tf.Tensor, Any]:
        """(features [B, F], core state)."""
        reward = losses.clip_reward(entry.reward, self._config.reward_clipping)
        return self._network.step(entry.observation, reward, entry.action, entry.first, core_state)

    def update(
        self, batch: Batch, context: Context, exchange: Exchange
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """One V-trace update."""
        config, trained = self._config, self.variables.trained
        loss, gradients = exchange.differentiate(lambda: self._loss(batch), trained)
        self._optimizer.learning_rate.assign(
            optimizers.linear_decay(config.learning_rate, context.frames, context.total)
        )
        applied = exchange.apply(self._optimizer, gradients, trained)
        error = 2.0 * exchange.mean(loss.baseline, name="squared_error")  # summed or averaged
        if config.loss_reduction == "sum":
            error /= tf.cast(tf.size(batch.unrolls.reward[1:]), tf.float32)
        change = _PACE * (error - self._squared_error)
        self._squared_error.assign_add(tf.where(tf.math.is_finite(change), change, 0.0))
        metrics = {
            "loss/total": loss.total,
            "loss/policy": loss.policy,
            "loss/baseline": loss.baseline,
            "loss/entropy": loss.entropy,
            "loss/shift": loss.shift,
            "learning_rate": self._optimizer.learning_rate.read_value(),
            "grad_norm": applied.norm,
            "clipped_share": applied.clipped,
        }
        return metrics, batch.weight

    def _loss(self, batch: Batch) -> losses.Losses:
        config, entries = self._config, batch.unrolls
        reward = losses.clip_reward(entries.reward, config.reward_clipping)  # [T+1, B]
        features, _ = self._network.unroll(
            entries.observation, reward, entries.action, entries.first, batch.start
        )  # [T+1, B, F]
        logits = snt.BatchApply(self._policy_head)(features)  # [T+1, B, A]
        baseline = tf.squeeze(snt.BatchApply(self._baseline_head)(features), -1)  # [T+1, B]
        return losses.impala_loss(
            policy_logits=logits,
            values=baseline,
            actions=entries.action,
            rewards=reward,
            terminated=entries.terminated,
            first=entries.first,
            behaviour_log_probs=Categorical(entries.extras).log_prob(entries.action),
            weight=batch.weight,
            discounting=config.discounting,
            baseline_cost=config.baseline_cost / tf.maximum(self._squared_error, 1.0),
            entropy_cost=config.entropy_cost,
            reduction=config.loss_reduction,
            lambda_=config.vtrace_lambda,
            clip_rho_threshold=config.clip_rho_threshold,
            clip_pg_rho_threshold=config.clip_pg_rho_threshold,
            clip_c_threshold=config.clip_c_threshold,
        )
