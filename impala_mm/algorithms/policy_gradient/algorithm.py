"""Policy gradients in rounds: the update that PPO, A2C and their kin share.

    a round of unrolls, all played by the newest policy
        -- `_goals`, once per batch: advantages, value targets
        -- `_loss`, for each minibatch of each epoch: policy + baseline + entropy + features
        -- exchange.apply: averaged over learners, clipped, applied

A subclass may say in `_policy_terms` how an action's probability and advantage make a loss, and in
`_scaled` how advantages weigh.
"""

from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.feature import Begun, Features, Judged, Student, mean
from impala_mm.algorithms.interface import DEFAULT_SETUP, Context, Role, Setup, Updated
from impala_mm.algorithms.parts import advantages, losses, samples, value_units
from impala_mm.algorithms.parts.actor_critic import ActorCritic, transitions
from impala_mm.algorithms.parts.samples import Samples
from impala_mm.algorithms.policy_gradient.settings import PolicyGradientSettings
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class PolicyTerms(NamedTuple):
    """The policy's loss of each step, [T, N]."""

    losses: tf.Tensor
    counted: dict[str, tf.Tensor]  # bool [T, N]: metrics, as the share of steps that are true


class Goals(NamedTuple):
    """The goals of the steps of a batch, [T, N], without gradients."""

    advantages: tf.Tensor  # scaled
    targets: tf.Tensor  # of the values
    values: tf.Tensor  # before the first optimizer step
    prepared: Any = ()  # nest of [T, N, ...]: what the loss of features takes


class PolicyGradient(ActorCritic):
    """An actor-critic that learns from rounds of its newest policy."""

    rounds = PolicyGradientSettings.rounds
    _config: PolicyGradientSettings

    settings: ClassVar[type[PolicyGradientSettings]]  # the flags that the subclass reads

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = self.settings.of(config)
        super().__init__(config, environment, setup)
        self.rounds_overlap = config.rounds_overlap
        self._division = samples.divide(
            config, self.network_name, self._network, environment.observation
        )
        self._estimate = advantages.make(config)
        self._scale_advantages = self._scales_advantages()
        self.variables = self._group_variables(
            self._prepare_updates() if setup.role is Role.LEARNER else []
        )

    def _prepare_updates(self) -> list[tf.Variable]:
        """Make what only `update` needs; return its variables."""
        return self._prepare_learning(self._config)

    def _policy_terms(self, log_ratios: tf.Tensor, advantages: tf.Tensor) -> PolicyTerms:
        """Return the policy's losses of steps [T, N].

        `log_ratios` are the logarithms of the actions' probabilities under the policy, less those
        under the policy that played; they carry the gradient, which is that of the
        log-probabilities. Unless a subclass says otherwise, it is weighed by the advantages.
        """
        return PolicyTerms(-advantages * log_ratios, {})

    def _scaled(
        self, estimates: tf.Tensor, live: tf.Tensor, exchange: GradientReducer, new: bool
    ) -> tf.Tensor:
        """Return the advantages [T, B] as they weigh, of all learners' steps alike.

        `new` is true once per batch: the first time that its advantages are computed.
        """
        if self._scale_advantages:
            moments = losses.moments(estimates, live, exchange)
            estimates = losses.standardise(estimates, live, moments)
        return tf.nn.relu(estimates) if self._config.positive_advantages else estimates

    def update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Make the optimizer steps of all epochs and minibatches."""
        config, trained = self._config, self.variables.trained
        features = self.features.of_online_updates()
        begun = features.begin(batch, context, self._reading(batch, exchange))
        batch = begun.batch
        rate = self._schedule_rate(context)
        read = batch._replace(unrolls=self._normaliser.read(batch.unrolls))
        begun = begun._replace(batch=read)
        goals, steps = self._goals(begun, exchange, features, new=True)
        level = self._levels(batch.unrolls)
        explained, squared_error = _fit(goals, steps.live, exchange)
        self._unit.see_error(tf.cast(squared_error, tf.float32))
        behaviour = self._recorded(batch.unrolls)[1:]
        unrolls = samples.of_batch(read, steps, behaviour, level)

        def renew() -> Goals:
            renewed, _ = self._goals(begun, exchange, features)
            return renewed._replace(values=goals.values)

        def step(part: Samples, of_part: Goals) -> dict[str, tf.Tensor]:
            (_, parts, measured, entropy, added), gradients = exchange.differentiate(
                lambda: self._loss(part, of_part, features), trained
            )
            exchange.apply(self._optimizer, gradients, trained)
            metrics = losses.as_metrics(parts, part.live, config.loss_reduction)
            metrics |= measured | {"entropy": mean(entropy)}
            metrics |= self._entropy_cost.update(entropy, exchange)
            return metrics | features.after(added, exchange)

        limits = {"approx_kl": config.target_kl} if config.target_kl < float("inf") else {}
        made = self._division.run_passes(
            exchange,
            step,
            unrolls,
            goals,
            self.initial_state,
            stop_above=limits,
            renew=renew if config.recompute_advantages else None,
        )
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        metrics = made.metrics | {
            "explained_variance": explained,
            "optimizer_steps": made.steps,
            "learning_rate": rate,
        }
        return metrics | begun.metrics | self._unit.metrics(), batch.weight

    def _goals(
        self, begun: Begun, exchange: GradientReducer, features: Features, new: bool = False
    ) -> tuple[Goals, losses.Transitions]:
        """Return what a batch teaches the network as it is now, and the batch's steps [T, B].

        The normaliser has read the batch. If it is new, the unit of the values follows its targets.
        """
        batch, entries = begun.batch, begun.batch.unrolls
        level = self._levels(entries)
        parameters, values, torso = self._unroll(entries, batch.start, level)
        values = tf.where(batch.weight > 0, tf.stop_gradient(values), 0.0)
        steps = losses.transitions(
            values=values,
            actions=entries.action,
            rewards=entries.reward + begun.bonus,
            terminated=entries.terminated,
            first=entries.first,
            behaviour_log_probs=tf.cast(
                self._behaviour(entries).log_prob(entries.action), values.dtype
            ),
            weight=batch.weight,
            discounting=self._config.discounting,
        )
        policy = losses.step_policy(self._distribution.make, parameters, steps.live, entries.mask)
        log_ratios = policy.log_prob(steps.actions) - steps.behaviour_log_probs
        estimates = self._estimate(steps, values, tf.stop_gradient(log_ratios))
        if new:
            self._unit.see_targets(estimates.value_targets, steps.live, exchange, level)
        in_unit = self._unit.scale_advantages(estimates.advantages, level)
        columns = tf.broadcast_to(batch.weight > 0, tf.shape(values))
        judged = Judged(in_unit, steps.live, losses.mask(columns, tf.stop_gradient(torso)))
        weighed, prepared = features.advantages(judged, transitions(steps.live, begun.prepared))
        scaled = self._scaled(weighed, steps.live, exchange, new)
        return Goals(scaled, estimates.value_targets, values[:-1], prepared), steps

    def _loss(
        self, part: Samples, goals: Goals, features: Features
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor], tf.Tensor, Any]:
        """Return the loss of a minibatch, its parts, metrics per step, and what is measured.

        The last two are the sum and the count of entropies, [2], and what the features measured.
        """
        config, live = self._config, part.live
        level = part.level[0]
        parameters, values, read = self._unroll(part.entries, part.start, level)
        policy = self._distribution.make(losses.mask(live, parameters), part.masks)
        log_ratios = policy.log_prob(part.actions) - part.behaviour_log_probs
        log_ratios = tf.where(live, log_ratios, 0.0)
        terms, counted = self._policy_terms(log_ratios, goals.advantages)
        values = losses.mask(live, values)
        unit = tf.cast(self._unit.squared(level), values.dtype)
        errors = value_units.errors(
            values,
            goals.targets,
            tf.sqrt(unit),
            huber_delta=config.huber_delta,
            clipping=config.value_clip,
            before=goals.values,
        )

        student = Student(
            live=live,
            weight=part.weight,
            reduction=config.loss_reduction,
            actions=part.actions,
            make=lambda given: self._distribution.make(
                tf.cast(given, parameters.dtype), part.masks
            ),
            policy=policy,
            torso=losses.mask(live, read),
            behaviour=part.behaviour,
            values=values,
            unit=tf.sqrt(tf.reduce_mean(unit)),
        )
        entropy = policy.entropy()
        of_policy, baseline = student.reduce(terms), student.reduce(errors)
        entropy_loss = student.reduce(-entropy)
        added, of_features = features.loss(student, goals.prepared)
        total = of_policy + added
        total += value_units.cost(config.baseline_cost, unit, errors, student.reduce)
        total += self._entropy_cost.read(total.dtype) * entropy_loss
        measured = {name: student.sums(tf.cast(x, values.dtype)) for name, x in counted.items()}
        # --target_kl compares that of all learners' steps, of which each may have another number.
        measured["approx_kl"] = student.sums(tf.exp(log_ratios) - 1.0 - log_ratios)
        parts = {"total": total, "policy": of_policy, "baseline": baseline, "entropy": entropy_loss}
        return total, parts, measured, student.sums(entropy), of_features


def _fit(goals: Goals, live: tf.Tensor, exchange: GradientReducer) -> tuple[tf.Tensor, tf.Tensor]:
    """Return how well the values fit all learners' targets, float64 [] each.

    The first is the share of the targets' variance that they explain, NaN if the targets are all
    equal; the second is their mean squared error.
    """
    left = losses.moments(goals.targets - goals.values, live, exchange)
    variance = losses.moments(goals.targets, live, exchange).variance()
    explained = tf.where(variance > 0, 1.0 - left.variance() / variance, float("nan"))
    return explained, left.squares / left.count
