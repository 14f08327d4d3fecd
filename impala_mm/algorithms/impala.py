"""IMPALA: actor-critic with V-trace (arXiv 1802.01561), for any actions.

V-trace corrects for the updates that the learner has made since an actor chose its actions.
"""

import math
from typing import Any

import tensorflow as tf

from impala_mm.algorithms import advantages, guidance, losses, masking, recorded, replay_losses
from impala_mm.algorithms.actor_critic import ActorCritic
from impala_mm.algorithms.distributions import Distribution
from impala_mm.algorithms.impala_loss import Losses, Step, impala_loss, vtrace_step
from impala_mm.algorithms.impala_settings import Settings
from impala_mm.algorithms.interface import Context, Role
from impala_mm.algorithms.regularisers import Regularisation
from impala_mm.algorithms.target_policy import TargetPolicy
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


def make(config: Config, environment: EnvironmentSpec, role: Role = Role.LEARNER) -> "Impala":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return Impala(config, environment, role)


class Impala(ActorCritic):
    """An actor-critic that is trained with V-trace."""

    def __init__(self, config: Config, environment: EnvironmentSpec, role: Role = Role.LEARNER):
        config = Settings.of(config)  # a user's algorithm may have other settings
        super().__init__(config, environment)
        self._config: Settings = config
        self._estimate = advantages.make(config)
        self._scale_advantages = self._scales_advantages()
        self._target: TargetPolicy | None = None
        self.guidance = guidance.make(config, self._distribution, records_policy=True)
        carried: list[tf.Variable] = []
        if role is Role.LEARNER:
            carried = [*self._make_optimizer(), *self._make_regularisers(config)]
            if config.impact_clip:
                carried += self._make_target(environment)
        self.variables = self._group_variables(carried)

    def _make_target(self, environment: EnvironmentSpec) -> list[tf.Variable]:
        """Make the target policy of IMPACT; return its variables."""
        config, modules = self._config, (self._network, self._policy_head)
        policy = [v for module in modules for v in module.trainable_variables]
        mean, every = self._normaliser.mean, config.impact_target_updates
        self._target = TargetPolicy(config, environment, mean, self._distribution, policy, every)
        return self._target.variables

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make one update."""
        config, trained = self._config, self.variables.trained
        if self._target:
            self._target.begin_update()
        moments = self._look_ahead(batch, exchange)
        costs = self._regularisers.begin_update(context)
        if self.guidance:
            costs |= self.guidance.begin_update(context)
        reference = self._regularisers.reference_parameters(batch)
        taught = self._ask_teachers(batch)
        (_, loss, regularisation, replay, priorities), gradients = exchange.differentiate(
            lambda: self._loss(batch, moments, reference, taught), trained
        )
        rate = self._schedule_rate(context)
        applied = exchange.apply(self._optimizer, gradients, trained)
        # The number of steps over which each loss is a sum; with "mean" it is already an average.
        num_summed = tf.size(batch.unrolls.reward[1:]) if config.loss_reduction == "sum" else 1
        num_summed = tf.cast(num_summed, tf.float32)
        per_step = Losses(*(value / num_summed for value in loss))
        error = 2.0 * exchange.mean(loss.error, name="squared_error") / num_summed
        self._unit.see_error(error)
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
            "learning_rate": rate,
            "grad_norm": applied.norm,
            "clipped_share": applied.clipped,
        }
        metrics |= self._regularisers.update(regularisation, exchange) | costs | replay
        return metrics | self._unit.metrics(), priorities

    def compare_features(self, entries: Entry, start: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the features of the steps, [T, B, F]: those recorded, and the present network's.

        Replay compares them; see `interface.Algorithm`.
        """
        present = self._unroll_features(self._normaliser.read(entries), start).policy
        return entries.extras.features[1:], tf.cast(present[:-1], tf.float32)

    def _look_ahead(self, batch: Batch, exchange: GradientReducer) -> losses.Moments | None:
        """Let the values' unit see the targets; return the moments of all learners' advantages.

        None: the batch's own moments will do. What the learners exchange must be known before the
        loss is computed, since --xla compiles the loss, and an exchange cannot be compiled. So with
        PopArt, and to scale the advantages of several learners, the network runs forward twice.
        """
        scales = self._scale_advantages and exchange.group.size > 1
        popart = self._config.value_normalization == "popart"
        if not (scales or popart):
            return None
        step = vtrace_step(weight=batch.weight, **self._outputs(batch))
        live, found = step.steps.live, step.estimates
        self._unit.see_targets(found.value_targets, live, exchange)
        if not scales:
            return None
        in_unit = self._unit.scale_advantages(found.advantages)
        return losses.moments(in_unit, live, exchange)

    def _loss(
        self, batch: Batch, moments: losses.Moments | None, reference: Any, taught: Any
    ) -> tuple[tf.Tensor, Losses, Regularisation, dict[str, tf.Tensor], tf.Tensor]:
        """Return the loss, its parts, the regularisers' measurements, replay's, and priorities.

        `reference` are the parameters of the reference policy, [T+1, B, P], or (), and `taught` is
        the teachers' `distillation.Taught`, or ().
        """
        config, weight = self._config, batch.weight
        step = vtrace_step(weight=weight, **self._outputs(batch))
        live = step.steps.live
        masks = masking.allow_all(~live, batch.unrolls.mask)
        taught = tf.nest.map_structure(lambda x: x[:-1], taught)
        values, taught = self._for_teachers(losses.mask(live, step.values), taught)
        regularisation = self._regularisers.measure(
            step.policy,
            lambda parameters: self._distribution.make(losses.mask(live, parameters), masks),
            recorded.policy_parameters(batch.unrolls.extras)[1:],
            reference[:-1],
            live,
            weight,
            config.loss_reduction,
            batch.fresh,
            taught,
            values,
        )
        loss = impala_loss(
            step,
            regularisation,
            weight=weight,
            baseline_cost=config.baseline_cost / self._unit.squared(),
            reduction=config.loss_reduction,
            scale_advantages=self._scale_advantages,
            advantage_moments=moments,
            unit=self._unit,
            huber_delta=config.huber_delta,
            surrogate=replay_losses.Surrogate(config.impact_clip) if self._target else None,
        )
        errors = tf.abs(step.estimates.value_targets - tf.stop_gradient(step.values))
        priorities = tf.reduce_mean(losses.mask(live, errors), axis=0)
        cloned, replay = self._replay_loss(batch, step)
        loss = loss._replace(total=loss.total + cloned)
        return loss.total, loss, regularisation, replay, priorities

    def _replay_loss(self, batch: Batch, step: Step) -> tuple[Any, dict[str, tf.Tensor]]:
        """Return what replay adds to the loss, and its metrics."""
        config, live, metrics = self._config, step.steps.live, dict[str, tf.Tensor]()
        if config.trust_region < math.inf:
            metrics["trusted_share"] = replay_losses.share(step.trusted, live)
        if not (config.policy_cloning_cost or config.value_cloning_cost):
            return 0.0, metrics
        extras = batch.unrolls.extras
        recorded_values = step.values
        if config.value_cloning_cost:
            recorded_values = losses.mask(live, extras.value[1:])
        found = replay_losses.clone(
            step.policy,
            self._transition_behaviour(batch, live),
            step.values,
            recorded_values,
            live=step.trusted,
            fresh=batch.fresh,
            weight=batch.weight,
            cloned=config.cloned,
            reduction=config.loss_reduction,
        )
        if config.policy_cloning_cost:
            metrics["loss/policy_cloning"] = found.policy
        if config.value_cloning_cost:
            metrics["loss/value_cloning"] = found.value
        costs = config.policy_cloning_cost, config.value_cloning_cost / self._unit.squared()
        return costs[0] * found.policy + costs[1] * found.value, metrics

    def _transition_behaviour(self, batch: Batch, live: tf.Tensor) -> Distribution:
        """Return the policy that played at the transitions [T, B]."""
        parameters = recorded.policy_parameters(batch.unrolls.extras)[1:]
        masks = masking.allow_all(~live, batch.unrolls.mask)
        return self._distribution.make(losses.mask(live, parameters), masks)

    def _outputs(self, batch: Batch) -> dict[str, Any]:
        """Return the arguments of `vtrace_step` for a batch but its weight."""
        config, entries = self._config, self._normaliser.read(batch.unrolls)

        def trusts(policy: Distribution, live: tf.Tensor) -> tf.Tensor:
            behaviour = self._transition_behaviour(batch, live)
            return replay_losses.is_trusted(policy, behaviour, config.trust_region)

        parameters, values = self._unroll(entries, batch.start)
        target = None
        if self._target:
            features = self._unroll_features(entries, batch.start, self._target.network)
            target = self._target.parameters(features.policy)
        return {
            "distribution": self._distribution.make,
            "masks": entries.mask,
            "parameters": parameters,
            "values": values,
            "actions": entries.action,
            "rewards": entries.reward,
            "terminated": entries.terminated,
            "first": entries.first,
            "behaviour_log_probs": self._behaviour(entries).log_prob(entries.action),
            "discounting": config.discounting,
            "clip_pg_rho_threshold": config.clip_pg_rho_threshold,
            "estimate": self._estimate,
            "target_parameters": target,
            "trusts": trusts if config.trust_region < math.inf else None,
        }
