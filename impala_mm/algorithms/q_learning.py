"""Q-learning: the update that DQN and R2D2 share.

    unrolls, new ones and replayed ones by priority (--replay)
        -- target network, without gradient: the values that follow
        -- network: the errors of the actions that were played, weighted by importance
        -- exchange.apply, then the target network follows
        -- the errors' sizes are the unrolls' new priorities

A subclass says how unrolls overlap.
"""

from typing import Any

import tensorflow as tf

from impala_mm.algorithms import (
    epsilon,
    losses,
    masking,
    networks,
    normalisers,
    optimizers,
    q_values,
    targets,
    value_targets,
)
from impala_mm.algorithms.interface import (
    Context,
    EnvironmentNumber,
    PolicyOutput,
    Role,
    entry_spec,
    start_spec,
)
from impala_mm.algorithms.q_learning_settings import Settings
from impala_mm.algorithms.q_network import QNetwork
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class QLearning:
    """Values of actions, trained towards targets of `n_steps` rewards and a later value."""

    masks = True

    def __init__(
        self,
        config: Settings,
        environment: EnvironmentSpec,
        role: Role,
        overlap: int,
        burn_in: int = 0,
    ):
        """Make the networks; unrolls have `overlap` entries of the unroll before.

        The first `burn_in` of them only fill the network's memory.
        """
        self._config, self._burn_in = config, burn_in
        self.network_name = networks.chosen_name(config, environment)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._online = QNetwork(config, environment, config.duelling)
        self._rule = q_values.Rule(
            config.discounting, config.n_steps, config.double_q, config.value_rescaling
        )
        self._epsilon = tf.Variable(config.epsilon_start, trainable=False, name="epsilon")
        start = start_spec(self.initial_state(1))
        self.unroll = UnrollSpec(
            config.unroll_length,
            overlap,
            entry_spec(environment, extras=tf.TensorSpec([2], tf.float32)),
            start,
        )
        trained, inputs = list(self._online.trainable_variables), self._normaliser
        copied, slots = self._prepare_updates(environment) if role is Role.LEARNER else ([], [])
        self.variables = Variables(
            trained=trained,
            carried=[*copied, *slots, self._epsilon, *inputs.carried],
            acting=[*trained, self._epsilon, *inputs.acting],
            weights=[*copied, *inputs.carried],
        )

    def _prepare_updates(
        self, environment: EnvironmentSpec
    ) -> tuple[list[tf.Variable], list[tf.Variable]]:
        """Make what only `update` needs; return the target network's variables, and the others."""
        config, trained = self._config, list(self._online.trainable_variables)
        self._target = QNetwork(config, environment, config.duelling)
        copied = list(self._target.trainable_variables)
        targets.follow(copied, trained)
        self._optimizer = optimizers.make(
            config.optimizer, config.learning_rate, config.decay, config.momentum, config.epsilon
        )
        self._optimizer.initialize(trained)
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")
        return copied, [*self._optimizer.variables, self._updates]

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""
        return self._normaliser.initial_state(self._online.initial_state(batch), batch)

    def act(
        self,
        entry: Entry,
        core_state: Any,
        exploration: tf.Tensor,
        environment: EnvironmentNumber,
    ) -> tuple[tf.Tensor, Any, Any]:
        """Choose the best actions, or random ones with each environment's probability.

        Record the value of the chosen action, and the largest value, for `first_priorities`.
        """
        values, core_state = self._read(entry, core_state)
        if self._config.epsilon_schedule == "ladder":
            share = epsilon.of_ladder(environment, self._config.epsilon_base)
        else:
            share = self._epsilon
        action = epsilon.choose(values, entry.mask, exploration * share)
        best = tf.reduce_max(masking.allowed_only(values, entry.mask), -1)
        # Not tf.gather, so that actors can compute this function by NumPy.
        chosen = tf.reduce_sum(tf.one_hot(action, values.shape[-1]) * values, -1)
        return action, core_state, tf.stack([chosen, best], -1)

    def first_priorities(self, entries: Entry, start: Any) -> tf.Tensor:
        """Return the priorities [B] of new unrolls, by the values that their actors recorded.

        The value of the last entry is recorded in the next unroll, so errors are those of the steps
        before the last one. Without such steps they are NaN, which stands for a large priority.
        """
        del start
        entries = tf.nest.map_structure(lambda x: x[self._burn_in :], entries)
        entries = self._normaliser.read(entries)
        if entries.first.shape[0] < 3:
            return tf.fill(tf.shape(entries.first)[1:], float("nan"))
        chosen, best = tf.unstack(entries.extras[1:], axis=-1)
        reward, terminated, live = (
            x[1:-1] for x in (entries.reward, entries.terminated, ~entries.first)
        )
        values = self._in_rewards(best)
        goals = q_values.n_step_targets(values, reward, terminated, live, self._rule)
        if self._rule.rescaling:
            goals = q_values.rescale(goals, self._rule.rescaling)
        errors = q_values.Errors(tf.where(live, goals - chosen[:-1], 0.0), live)
        return q_values.priorities(errors, self._config.largest_error_share)

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the greedy policy and its values."""
        values, _ = self._read(entry, core_state)
        best = masking.best_choice(values, entry.mask)
        values = self._in_rewards(values)
        value = tf.gather(values, best, batch_dims=1)
        return PolicyOutput(tf.one_hot(best, values.shape[-1]), value, values=values)

    def _in_rewards(self, values: tf.Tensor) -> tf.Tensor:
        """Return the network's values in the unit of rewards."""
        epsilon = self._config.value_rescaling
        return q_values.restore(values, epsilon) if epsilon else values

    def _read(self, entry: Entry, core_state: Any) -> tuple[tf.Tensor, Any]:
        """Return (values [B, A], core state) after reading entries [B, ...]."""
        returns, state = self._normaliser.split(core_state)
        returns = self._normaliser.step(entry, returns)
        values, state = self._online.step(self._normaliser.read(entry), state)
        return values, self._normaliser.join(returns, state)

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make one update; return the unrolls' new priorities with its metrics."""
        config, trained = self._config, self.variables.trained
        future = self._unroll(self._target, batch)

        def loss() -> tuple[tf.Tensor, q_values.Errors, tf.Tensor]:
            return self._loss(self._unroll(self._online, batch), future, batch)

        (total, found, value), gradients = exchange.differentiate(loss, trained)
        rate = optimizers.scheduled_rate(config, context.frames, context.total)
        self._optimizer.learning_rate.assign(rate)
        applied = exchange.apply(self._optimizer, gradients, trained)
        follows = self._updates.assign_add(1) % config.target_period == 0
        share = tf.where(follows, config.target_share, 0.0)
        targets.follow(self._target.trainable_variables, trained, share)
        self._epsilon.assign(
            epsilon.decayed(
                context.frames, config.epsilon_start, config.epsilon_end, config.epsilon_frames
            )
        )
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        metrics = {
            "loss/total": total,
            "q/error": losses.reduce(tf.abs(found.error), found.live, batch.weight, "mean"),
            "q/value": value,
            "learning_rate": rate,
            "grad_norm": applied.norm,
            "clipped_share": applied.clipped,
        }
        if config.epsilon_schedule == "decay":
            metrics["epsilon"] = self._epsilon.read_value()
        return metrics, q_values.priorities(found, config.largest_error_share)

    def _unroll(self, network: QNetwork, batch: Batch) -> tf.Tensor:
        """Return a network's values of a batch's entries but those of the burn-in."""
        _, state = self._normaliser.split(batch.start)
        return network.unroll(self._normaliser.read(batch.unrolls), state, self._burn_in)

    def _loss(
        self, values: tf.Tensor, future: tf.Tensor, batch: Batch
    ) -> tuple[tf.Tensor, q_values.Errors, tf.Tensor]:
        """Return the loss, the errors [T, B] and the mean value of the batch's steps.

        `values` and `future` are those of the network and of the target network.
        """
        config = self._config
        entries = tf.nest.map_structure(lambda x: x[self._burn_in :], batch.unrolls)
        entries = self._normaliser.read(entries)
        found = q_values.find_errors(values, future, entries, batch.weight, self._rule)
        # Later steps only complete the targets: they are steps of the next unroll.
        found = q_values.Errors(*(x[: config.unroll_length] for x in found))
        terms = value_targets.errors(
            tf.zeros_like(found.error), found.error, huber_delta=config.huber_delta
        )
        loss = losses.reduce(terms, found.live, batch.weight, config.loss_reduction)
        return loss, found, tf.reduce_mean(self._in_rewards(tf.reduce_max(values, -1)))
