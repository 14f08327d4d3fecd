"""IMPALA: actor-critic with V-trace (arXiv 1802.01561), for any actions.

The actor records the parameters of the distribution from which it sampled each action (logits, for
Discrete actions); V-trace corrects for the updates that the learner has made since then.

The baseline's squared errors are divided by their own running mean where that is above 1. Where
returns are large (up to 500 in CartPole), their gradient would otherwise be much larger than the
policy's in the weights that both share, and would change the policy at random. In CartPole, the
off-policyness is 0.3 nats per action without this division, and 0.01 with it.
"""

from typing import Any

import sonnet as snt
import tensorflow as tf

import nets
from impala_mm.algorithms import (
    losses,
    masking,
    networks,
    normalisers,
    optimizers,
    policies,
)
from impala_mm.algorithms.impala_loss import Losses, impala_loss, vtrace_step
from impala_mm.algorithms.impala_settings import Settings
from impala_mm.algorithms.interface import Context, PolicyOutput, Role, entry_spec, start_spec
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec

_PACE = 0.01  # weight of each batch in the running mean of squared errors


def make(config: Config, environment: EnvironmentSpec, role: Role = Role.LEARNER) -> "Impala":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return Impala(config, environment, role)


class Impala:
    """A network with a policy head and a baseline head, trained with V-trace."""

    masks = True  # actions that an environment forbids are never chosen

    def __init__(self, config: Config, environment: EnvironmentSpec, role: Role = Role.LEARNER):
        config = self._config = Settings.of(config)  # a user's algorithm may have other settings
        self.network_name = networks.chosen_name(config, environment)
        self._network = networks.make_actor_critic(config, environment)
        self._distribution = policies.choose(
            environment.actions, config.box_policy, config.box_deviation
        )
        self._actions, scaling = environment.actions, config.advantage_scaling
        discrete = self._actions.discrete is not None
        self._scale_advantages = scaling == "batch" or (scaling == "auto" and not discrete)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._policy_head = policies.make_head(self._distribution, config.policy_init_scale)
        self._baseline_head = snt.Linear(1, name="baseline")
        parameters = tf.TensorSpec([self._distribution.num_parameters], tf.float32)
        step = entry_spec(environment, extras=parameters)
        start = start_spec(self.initial_state(1))
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=start)

        for head in (self._policy_head, self._baseline_head):  # creates their variables
            head(tf.zeros([1, self._network.num_features]))
        modules = (self._network, self._policy_head, self._baseline_head)
        trained = [v for module in modules for v in module.trainable_variables]
        carried = self._prepare_updates(trained) if role is Role.LEARNER else []
        inputs = self._normaliser
        self.variables = Variables(
            trained=trained,
            carried=[*carried, *inputs.carried],
            acting=[*trained, *inputs.acting],
            weights=inputs.carried,
        )

    def _prepare_updates(self, trained: list[tf.Variable]) -> list[tf.Variable]:
        """Make what only `update` needs; return its variables."""
        config = self._config
        self._optimizer = optimizers.make(
            config.optimizer, config.learning_rate, config.decay, config.momentum, config.epsilon
        )
        self._optimizer.initialize(trained)
        self._squared_error = tf.Variable(1.0, trainable=False, name="squared_error")
        return [*self._optimizer.variables, self._squared_error]

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""
        return self._normaliser.initial_state(self._network.initial_state(batch), batch)

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """Sample actions from the policy; where `exploration` is 0, take the most likely ones."""
        features, core_state = self._read(entry, core_state)
        parameters = self._policy_head(features.policy)
        policy = self._distribution.make(parameters, entry.mask)
        return policies.draw(policy, exploration), core_state, parameters

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy's probabilities, or parameters, and the baseline's values."""
        features, _ = self._read(entry, core_state)
        parameters = self._policy_head(features.policy)
        values = tf.squeeze(self._baseline_head(features.value), -1)
        return self._output(parameters, values, entry.mask)

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""
        outputs = self._unroll(self._normaliser.read(entries), start)
        return self._output(*outputs, entries.mask)

    def _output(self, parameters: tf.Tensor, values: tf.Tensor, mask: Any) -> PolicyOutput:
        return policies.output(self._actions, parameters, values, mask)

    def _read(self, entry: Entry, core_state: Any) -> tuple[nets.Features, Any]:
        """Return (features [B, F], core state) after reading entries [B, ...]."""
        returns, state = self._normaliser.split(core_state)
        returns, read = self._normaliser.step(entry, returns), self._normaliser.read(entry)
        features, state = self._network.step(
            read.observation, read.reward, read.action, read.first, state
        )
        core_state = self._normaliser.join(returns, state)
        return networks.for_policy_and_value(features), core_state

    def _unroll(self, entries: Entry, start: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (policy parameters [T+1, B, P], values [T+1, B]).

        `entries` [T+1, B, ...] are those that the normaliser returns.
        """
        _, state = self._normaliser.split(start)
        features, _ = self._network.unroll(
            entries.observation, entries.reward, entries.action, entries.first, state
        )  # [T+1, B, F]
        features = networks.for_policy_and_value(features)
        values = snt.BatchApply(self._baseline_head)(features.value)  # [T+1, B, 1]
        return snt.BatchApply(self._policy_head)(features.policy), tf.squeeze(values, -1)

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make one V-trace update."""
        config, trained = self._config, self.variables.trained
        moments = self._advantage_moments(batch, exchange)
        loss, gradients = exchange.differentiate(lambda: self._loss(batch, moments), trained)
        self._optimizer.learning_rate.assign(
            optimizers.scheduled_rate(config, context.frames, context.total)
        )
        applied = exchange.apply(self._optimizer, gradients, trained)
        # The number of steps over which each loss is a sum; with "mean" it is already an average.
        num_summed = tf.size(batch.unrolls.reward[1:]) if config.loss_reduction == "sum" else 1
        num_summed = tf.cast(num_summed, tf.float32)
        per_step = Losses(*(value / num_summed for value in loss))
        error = 2.0 * exchange.mean(loss.baseline, name="squared_error") / num_summed
        change = _PACE * (error - self._squared_error)
        self._squared_error.assign_add(tf.where(tf.math.is_finite(change), change, 0.0))
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        metrics = {
            "loss/total": loss.total,
            "loss/policy": loss.policy,
            "loss/baseline": loss.baseline,
            "loss/entropy": loss.entropy,
            "loss/shift": loss.shift,
            "loss_per_step/total": per_step.total,
            "loss_per_step/policy": per_step.policy,
            "loss_per_step/baseline": per_step.baseline,
            "loss_per_step/entropy": per_step.entropy,
            "off_policyness": per_step.shift,
            "learning_rate": self._optimizer.learning_rate.read_value(),
            "grad_norm": applied.norm,
            "clipped_share": applied.clipped,
        }
        return metrics, batch.weight

    def _advantage_moments(self, batch: Batch, exchange: GradientReducer) -> losses.Moments | None:
        """Return the moments of all learners' advantages; None: the batch's own will do.

        The learners exchange them before the loss is computed, since --xla compiles the loss, and
        an exchange cannot be compiled. So several learners run the network forward twice.
        """
        if not self._scale_advantages or exchange.group.size == 1:
            return None
        steps, *_, targets = vtrace_step(weight=batch.weight, **self._outputs(batch))
        return losses.moments(targets.pg_advantages, steps.live, exchange)

    def _loss(self, batch: Batch, moments: losses.Moments | None) -> Losses:
        config = self._config
        return impala_loss(
            **self._outputs(batch),
            weight=batch.weight,
            baseline_cost=config.baseline_cost / tf.maximum(self._squared_error, 1.0),
            entropy_cost=config.entropy_cost,
            reduction=config.loss_reduction,
            scale_advantages=self._scale_advantages,
            advantage_moments=moments,
        )

    def _outputs(self, batch: Batch) -> dict[str, Any]:
        """Return the arguments of `vtrace_step` for a batch but its weight."""
        config, entries = self._config, self._normaliser.read(batch.unrolls)
        parameters, values = self._unroll(entries, batch.start)
        behaviour = self._distribution.make(entries.extras, masking.before(entries.mask))
        return {
            "distribution": self._distribution.make,
            "masks": entries.mask,
            "parameters": parameters,
            "values": values,
            "actions": entries.action,
            "rewards": entries.reward,
            "terminated": entries.terminated,
            "first": entries.first,
            "behaviour_log_probs": behaviour.log_prob(entries.action),
            "discounting": config.discounting,
            "lambda_": config.vtrace_lambda,
            "clip_rho_threshold": config.clip_rho_threshold,
            "clip_pg_rho_threshold": config.clip_pg_rho_threshold,
            "clip_c_threshold": config.clip_c_threshold,
        }
