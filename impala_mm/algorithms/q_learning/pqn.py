"""PQN (arXiv 2407.04811): Q-learning in rounds, without replay and without a target network.

    a round of unrolls, all played by the newest values and by epsilon
        -- `_targets`, once per batch: Q(lambda) from the largest values
        -- `_loss`, for each minibatch of each epoch: errors of the actions that were played
           + what features add to the loss, such as teachers
        -- exchange.apply: averaged over learners, clipped, applied

Layer normalisation keeps the values from diverging, which a target network does elsewhere.
"""

from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.feature import Features
from impala_mm.algorithms.interface import DEFAULT_SETUP, Context, Role, Setup, Updated
from impala_mm.algorithms.parts import advantages, losses, masking, samples
from impala_mm.algorithms.parts.actor_critic import transitions
from impala_mm.algorithms.parts.samples import Samples
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.algorithms.q_learning.player import QPlayer, make_student
from impala_mm.algorithms.q_learning.settings import PQNSettings
from impala_mm.algorithms.q_learning.value_distributions import Outcomes
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class _Goals(NamedTuple):
    """The goals of the steps of a batch, without gradients."""

    targets: tf.Tensor  # [T, B], in the unit that the network learns
    prepared: Any  # nest of [T, B, ...]: what the features have prepared


class PQN(QPlayer):
    """Parallelised Q-network: Q(lambda) from rounds of its newest values."""

    rounds = PQNSettings.rounds
    _config: PQNSettings

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = PQNSettings.of(config)
        super().__init__(config, environment, setup, overlap=1)
        self.rounds_overlap = config.rounds_overlap
        if not any(isinstance(part, snt.LayerNorm) for part in self._online.submodules):
            self.note = (
                f"{self.network_name} without layer normalisation: the values of PQN may diverge, "
                f"which layer_norm prevents for MLPs and convolutions"
            )
        self._division = samples.divide(
            config, self.network_name, self._online, environment.observation
        )
        self._returns = advantages.GeneralisedAdvantages(config.q_lambda)
        slots: list[tf.Variable] = []
        if setup.role is Role.LEARNER:
            # Of all optimizer steps: each has random numbers of its own.
            self._steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="steps")
            slots = [*self._prepare_learning(), self._steps]
        self.variables = self._group_variables(slots)

    def update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Make the optimizer steps of all epochs and minibatches."""
        config, trained = self._config, self.variables.trained
        features = self.features.of_online_updates()
        begun = features.begin(batch, context, self._reading(batch, exchange, exchange.update))
        batch, rate = begun.batch, self._schedule_rate(context)
        read = batch._replace(unrolls=self._normaliser.read(batch.unrolls))
        targets, steps, best = self._targets(read, begun.bonus)
        unrolls = samples.of_batch(read, steps)
        goals = _Goals(targets, transitions(steps.live, begun.prepared))

        def step(part: Samples, of_part: _Goals) -> dict[str, tf.Tensor]:
            number, columns = self._steps.assign_add(1), part.live.shape[1]
            draws = q_draws.Trained(exchange.group, config.seed, number, 0, columns, 1)
            (total, error, measured), gradients = exchange.differentiate(
                lambda: self._loss(part, of_part, draws, features), trained
            )
            exchange.apply(self._optimizer, gradients, trained)
            metrics = losses.as_metrics({"total": total}, part.live, config.loss_reduction)
            return metrics | {"q/error": error} | features.after(measured, exchange)

        made = self._division.run_passes(exchange, step, unrolls, goals, self.initial_state)
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        metrics = made.metrics | {
            "q/value": best.mean,
            "q/largest": best.largest,
            "q/action_gap": best.gap,
            "optimizer_steps": made.steps,
            "learning_rate": rate,
        }
        return metrics | self._schedule_epsilon(context) | begun.metrics, batch.weight

    def _targets(
        self, batch: Batch, bonus: tf.Tensor
    ) -> tuple[tf.Tensor, losses.Transitions, q_values.Best]:
        """Return the targets [T, B] of a batch for the network as it is now, and the steps.

        What is measured of the best actions' values is the last one. `bonus` is what features add
        to the rewards, [T+1, B].
        """
        config, entries = self._config, batch.unrolls
        _, state = self._normaliser.split(batch.start)
        values = self._online.unroll(
            entries, state, q_draws.Calm(), config.num_policy_quantiles
        ).mean
        allowed = masking.allowed_only(tf.stop_gradient(values), entries.mask)
        best = self._in_rewards(tf.reduce_max(allowed, -1))
        best = tf.where(batch.weight > 0, best, 0.0)
        steps = losses.transitions(
            values=best,
            actions=entries.action,
            rewards=entries.reward + bonus,
            terminated=entries.terminated,
            first=entries.first,
            behaviour_log_probs=tf.zeros_like(best),
            weight=batch.weight,
            discounting=config.discounting,
        )
        # The returns of lambda, as if the best actions were played.
        targets = self._returns(steps, best, steps.behaviour_log_probs).value_targets
        if config.value_rescaling:
            targets = q_values.rescale(targets, config.value_rescaling)
        return targets, steps, q_values.best(allowed[:-1], steps.live, self._in_rewards)

    def _loss(
        self, part: Samples, given: _Goals, draws: q_draws.Draws, features: Features
    ) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Return the loss of a minibatch, its mean error, and what the features measured."""
        config, live, kind = self._config, part.live, self._online.distribution
        targets, prepared = given
        _, state = self._normaliser.split(part.start)
        outputs = self._online.unroll(part.entries, state, draws, config.num_quantiles)
        played = q_values.chosen(losses.mask(live, outputs.numbers), part.actions)
        goals = Outcomes(targets[..., tf.newaxis], tf.ones_like(targets)[..., tf.newaxis])
        terms = kind.losses(played, outputs.levels, goals)
        errors = tf.abs(targets - kind.mean(played))
        student = make_student(config, outputs.mean, part.actions, part.masks, live, part.weight)
        added, measured = features.loss(student, prepared)
        error = losses.reduce(errors, live, part.weight, "mean")
        return student.reduce(terms) + added, error, measured
