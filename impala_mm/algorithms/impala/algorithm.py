"""IMPALA: actor-critic with V-trace (arXiv 1802.01561), for any actions.

V-trace corrects for the updates that the learner has made since an actor chose its actions.
"""

import math
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature import Begun, Features, Student, mean
from impala_mm.algorithms.impala import off_policy
from impala_mm.algorithms.impala.loss import ImpalaLosses, VTraceStep, impala_loss, vtrace_step
from impala_mm.algorithms.impala.off_policy import TargetPolicy
from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.interface import DEFAULT_SETUP, Context, Role, Setup, Updated
from impala_mm.algorithms.parts import action_policies, advantages, losses, masking, networks
from impala_mm.algorithms.parts.actor_critic import ActorCritic, Outputs, transitions
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class Impala(ActorCritic):
    """An actor-critic that is trained with V-trace."""

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = ImpalaSettings.of(config)  # a user's algorithm may have other settings
        super().__init__(config, environment, setup)
        self._config: ImpalaSettings = config
        self._estimate = advantages.make(config)
        self._scale_advantages = self._scales_advantages()
        self._target: TargetPolicy | None = None
        carried: list[tf.Variable] = []
        if setup.role is Role.LEARNER:
            carried = self._prepare_learning(config)
            if config.impact_clip:
                carried += self._make_target(environment)
        self.variables = self._group_variables(carried)

    def _make_target(self, environment: EnvironmentSpec) -> list[tf.Variable]:
        """Make the target policy of IMPACT; return its variables."""
        config, modules = self._config, (self._network, self._policy_head)
        self._target = TargetPolicy(
            networks.make_actor_critic(config, environment, self._normaliser.mean),
            action_policies.make_head(self._distribution, config.policy_init_scale),
            [v for module in modules for v in module.trainable_variables],
            config.impact_target_updates,
        )
        return self._target.variables

    def update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Make one update."""
        trained, features = self.variables.trained, self.features.of_online_updates()
        if self._target:
            self._target.begin_update()
        begun = features.begin(batch, context, self._reading(batch, exchange))
        batch, moments = begun.batch, self._look_ahead(begun, exchange)
        (_, loss, measured, priorities), gradients = exchange.differentiate(
            lambda: self._loss(begun, moments, features), trained
        )
        rate = self._schedule_rate(context)
        exchange.apply(self._optimizer, gradients, trained)
        steps, reduction = batch.unrolls.first[1:], self._config.loss_reduction
        error = 2.0 * exchange.mean(loss.error, name="squared_error")
        self._unit.see_error(losses.per_step(error, steps, reduction))
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        parts = {n: getattr(loss, n) for n in ("total", "policy", "baseline", "entropy")}
        metrics = losses.as_metrics(parts, steps, reduction) | {
            "loss/shift": loss.shift,
            "off_policyness": losses.per_step(loss.shift, steps, reduction),
            "learning_rate": rate,
        }
        metrics |= self._entropy_cost.update(measured["entropy"], exchange)
        metrics |= begun.metrics | features.after(measured["features"], exchange)
        if "trusted" in measured:
            metrics["trusted_share"] = mean(measured["trusted"])
        return metrics | self._unit.metrics(), priorities

    def compare_features(self, entries: Entry, start: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the features of the steps, [T, B, F]: those recorded, and the present network's.

        Replay compares them; see `interface.Algorithm`.
        """
        present = self._unroll_torso(self._normaliser.read(entries), start).policy
        own = self.features.own_extras(entries.extras)
        return own.features[1:], tf.cast(present[:-1], tf.float32)

    def _look_ahead(self, begun: Begun, exchange: GradientReducer) -> losses.Moments | None:
        """Let the values' unit see the targets; return the moments of all learners' advantages.

        None: the batch's own moments will do. What the learners exchange must be known before the
        loss is computed, since --xla compiles the loss, and an exchange cannot be compiled. So with
        PopArt, and to scale the advantages of several learners, the network runs forward twice.
        """
        scales = self._scale_advantages and exchange.group.size > 1
        popart = self._config.value_normalization == "popart"
        if not (scales or popart):
            return None
        step, _ = self._step(begun)
        live, found, level = step.steps.live, step.estimates, self._levels(begun.batch.unrolls)
        self._unit.see_targets(found.value_targets, live, exchange, level)
        if not scales:
            return None
        in_unit = self._unit.scale_advantages(found.advantages, level)
        return losses.moments(in_unit, live, exchange)

    def _loss(
        self, begun: Begun, moments: losses.Moments | None, features: Features
    ) -> tuple[tf.Tensor, ImpalaLosses, dict[str, Any], tf.Tensor]:
        """Return the loss, its parts, what is measured besides, and priorities."""
        config, batch = self._config, begun.batch
        weight, level = batch.weight, self._levels(batch.unrolls)
        step, outputs = self._step(begun)
        live = step.steps.live
        masks = masking.allow_all(~live, batch.unrolls.mask)
        student = Student(
            live=live,
            weight=weight,
            reduction=config.loss_reduction,
            actions=step.steps.actions,
            make=lambda given: self._distribution.make(losses.mask(live, given), masks),
            policy=step.policy,
            torso=losses.mask(live, outputs.torso[:-1]),
            behaviour=losses.mask(live, self._recorded(batch.unrolls)[1:]),
            values=losses.mask(live, step.values),
            unit=tf.sqrt(tf.reduce_mean(self._unit.squared(level))),
            fresh=batch.fresh,
            trusted=step.trusted,
        )
        entropy = student.policy.entropy()
        loss = impala_loss(
            step,
            entropy,
            weight=weight,
            baseline_cost=config.baseline_cost,
            entropy_cost=self._entropy_cost.read(),
            reduction=config.loss_reduction,
            scale_advantages=self._scale_advantages,
            advantage_moments=moments,
            unit=self._unit,
            level=level,
            huber_delta=config.huber_delta,
            surrogate=off_policy.Surrogate(config.impact_clip) if self._target else None,
        )
        added, of_features = features.loss(student, transitions(live, begun.prepared))
        loss = loss._replace(total=loss.total + added)
        measured = {"entropy": student.sums(entropy), "features": of_features}
        if config.trust_region < math.inf:
            measured["trusted"] = student.sums(tf.cast(step.trusted, tf.float32))
        errors = tf.abs(step.estimates.value_targets - tf.stop_gradient(step.values))
        priorities = tf.reduce_mean(losses.mask(live, errors), axis=0)
        return loss.total, loss, measured, priorities

    def _step(self, begun: Begun) -> tuple[VTraceStep, Outputs]:
        """Return the policy of a batch, and what it learns from, and the network's outputs."""
        config, batch = self._config, begun.batch
        entries = self._normaliser.read(batch.unrolls)
        outputs = self._unroll(entries, batch.start, self._levels(batch.unrolls))
        target = None
        if self._target:
            torso = self._unroll_torso(entries, batch.start, self._target.network)
            target = self._target.parameters(torso.policy)
        step = vtrace_step(
            distribution=self._distribution.make,
            masks=entries.mask,
            parameters=outputs.parameters,
            values=outputs.values,
            actions=entries.action,
            rewards=entries.reward + begun.bonus,
            terminated=entries.terminated,
            first=entries.first,
            behaviour_log_probs=self._behaviour(entries).log_prob(entries.action),
            weight=batch.weight,
            discounting=config.discounting,
            clip_pg_rho_threshold=config.clip_pg_rho_threshold,
            estimate=self._estimate,
            target_parameters=target,
            recorded=self._recorded(entries),
            trust_region=config.trust_region,
        )
        return step, outputs
