"""Regularisers of a policy: its entropy, and its divergences from other policies.

    entropy      -H(pi)           the policy stays random
    kl_pi_mu     KL(pi || mu)     the policy does little that the behaviour policy mu did not do
    kl_mu_pi     KL(mu || pi)     the policy still does what mu did
    kl_ref_pi    KL(ref || pi)    the policy still does what a reference policy does

Each has a fixed cost, or a target at which a Lagrange multiplier holds its mean over the steps of
all learners. KL(teacher || pi), for the teachers of `distillation`, has a cost that falls to 0;
--distill may name another loss. An algorithm makes one `Regularisers` and calls it in each update:

    self._regularisers = Regularisers(config, environment.actions)      carried: its `variables`
    metrics = self._regularisers.begin_update(context)                                     first
    parameters = self._regularisers.reference_parameters(batch)                  before the loss
    taught = self._regularisers.ask_teachers(batch, earlier)
    measured = self._regularisers.measure(policy, make, behaviour, parameters, live, ...)
    total = policy_loss + baseline_cost * baseline_loss + measured.loss              in the loss
    metrics |= self._regularisers.update(measured, exchange)                 after the optimizer
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses, recorded
from impala_mm.algorithms.distillation import Distillation
from impala_mm.algorithms.distributions import Distribution
from impala_mm.algorithms.entropy_limits import why_unreachable
from impala_mm.algorithms.interface import Context, LoadedPolicy, PolicyLoader
from impala_mm.algorithms.lagrange import Multiplier
from impala_mm.algorithms.regulariser_settings import RegulariserSettings
from impala_mm.algorithms.teacher_losses import Student
from impala_mm.config import flags
from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.actions import ActionSpec

# By quantity, the initial cost of a multiplier if the fixed cost is 0.
_INITIAL = {"entropy": 0.01, "kl_pi_mu": 1.0, "kl_mu_pi": 1.0, "kl_ref_pi": 1.0}
# Those that compare the policy with the one that played.
_FROM_BEHAVIOUR = ("kl_pi_mu", "kl_mu_pi")


class Regularisation(NamedTuple):
    """The regularisers of a batch, or of a part of it."""

    loss: tf.Tensor  # []: the sum of all terms, each times its cost
    entropy: tf.Tensor  # []: the negative entropy, combined as the loss is
    totals: dict[str, tf.Tensor]  # by quantity, the sum over live steps; without a gradient
    counts: dict[str, tf.Tensor]  # by quantity, the number of these steps


class Regularisers:
    """The regularisers that the flags ask for, and the multipliers of those with a target."""

    def __init__(self, config: RegulariserSettings, actions: ActionSpec):
        """Raise UserMistake if --target_entropy is one that no policy can reach."""
        self._config, self._actions = config, actions
        self._reference: LoadedPolicy | None = None
        self.distillation = Distillation(config) if config.distils else None
        self._costs = {name: getattr(config, f"{name}_cost") for name in _INITIAL}
        targets = {name: getattr(config, f"target_{name}") for name in _INITIAL}
        targets = {name: target for name, target in targets.items() if math.isfinite(target)}
        if "entropy" in targets and (
            why := why_unreachable(targets["entropy"], actions, config.box_policy)
        ):
            raise UserMistake(f"--target_entropy={config.target_entropy:g}: {why}")
        self._multipliers = {
            name: Multiplier(
                f"{name}_cost",
                target,
                self._costs[name] or _INITIAL[name],
                config.multiplier_speed,
                raises=name == "entropy",
            )
            for name, target in targets.items()
        }
        self.variables = [v for each in self._multipliers.values() for v in each.variables]
        if self.distillation:  # the last ones; `ActorCritic` has them follow all others
            self.variables += self.distillation.variables

    def uses(self, name: str) -> bool:
        """Return whether a quantity has a cost or a target."""
        return bool(self._costs[name]) or name in self._multipliers

    def load_reference(self, load: PolicyLoader) -> None:
        """Load the policy that --reference names; raise UserMistake if it cannot be one."""
        config = self._config
        if not config.reference:
            return
        try:
            policy = load(config.reference, level_name=config.level_name, as_teacher=True)
        except UserMistake as error:
            raise UserMistake(f"--reference={config.reference}: {error}") from None
        differs = policy.config.box_policy != config.box_policy and self._actions.has_box
        if differs and "box_policy" in policy.flags_read:
            raise UserMistake(
                f"--reference={config.reference} has --box_policy={policy.config.box_policy}: "
                f"there is no divergence from it to another one, so give the same here"
            )
        # The state of normalised rewards has no part in what the policy is.
        if len(tf.nest.flatten(policy.initial_state(1))) > bool(policy.config.normalize_rewards):
            flags.warn(
                f"the policy of --reference={config.reference} remembers earlier observations, and "
                f"begins each unroll without a memory: for the first entries it is another policy "
                f"than the one that was trained; a larger --unroll_length makes them fewer"
            )
        self._reference = policy

    def reference_parameters(self, batch: Batch) -> Any:
        """Return the parameters of the reference policy at entries, [T+1, B, P]; () if unused.

        The entries of the batch are those that actors sent: a loaded policy normalises them itself.
        """
        if not self.uses("kl_ref_pi"):
            return ()
        if self._reference is None:
            return tf.zeros_like(recorded.policy_parameters(batch.unrolls.extras))
        start = self._reference.initial_state(tf.shape(batch.weight)[0])
        parameters = self._reference.judge_unroll(batch.unrolls, start).parameters
        return tf.stop_gradient(parameters)

    def begin_update(self, context: Context) -> dict[str, tf.Tensor]:
        """Set the costs that follow the run's progress; return their metrics."""
        return self.distillation.begin_update(context) if self.distillation else {}

    def ask_teachers(self, batch: Batch, earlier: Any = ()) -> Any:
        """Return a `distillation.Taught` for the entries of a batch; () if there is no teacher.

        `earlier` are the images before the entries that the student's network stacks, if any.
        """
        if not self.distillation:
            return ()
        like = recorded.policy_parameters(batch.unrolls.extras)
        return self.distillation.ask(batch.unrolls, like.shape[-1], earlier)

    def measure(
        self,
        policy: Distribution,
        make: Callable[[tf.Tensor], Distribution],
        behaviour: tf.Tensor,
        reference: Any,
        live: tf.Tensor,
        weight: tf.Tensor,
        reduction: str,
        fresh: tf.Tensor | None = None,
        taught: Any = (),
        values: Any = (),
    ) -> Regularisation:
        """Return the regularisers of the policy at transitions [T, B].

        `make` makes the policies there, with the same masks, of the behaviour policy's parameters
        [T, B, P] and of those of the reference, which may be () unless `uses("kl_ref_pi")`. `live`,
        `weight` and `reduction` are those of `losses.reduce`. The divergences from the behaviour
        policy count in the columns that are `fresh`, bool [B]: they let the policy move slowly, and
        would draw it back to what played old unrolls. None: in all columns. `taught` is that of the
        transitions, and `values` [T, B] are the student's, if --distill may compare them.
        """
        quantities: dict[str, Callable[[], tf.Tensor]] = {
            "entropy": policy.entropy,
            "kl_pi_mu": lambda: policy.kl(make(behaviour)),
            "kl_mu_pi": lambda: make(behaviour).kl(policy),
            "kl_ref_pi": lambda: make(reference).kl(policy),
        }
        terms = {
            name: compute()
            for name, compute in quantities.items()
            if name == "entropy" or self.uses(name)
        }
        if self.distillation and taught:
            student = Student(policy, make, values)
            terms[self.distillation.metric] = self.distillation.terms(student, taught)
        counted = dict.fromkeys(terms, live)
        if self.distillation and taught:
            counted[self.distillation.metric] = live & taught.known
        if fresh is not None:
            counted |= {name: live & fresh for name in _FROM_BEHAVIOUR if name in terms}
        # The entropy is to be raised, the divergences are to be lowered.
        reduced = {
            name: losses.reduce(
                -term if name == "entropy" else term, counted[name], weight, reduction
            )
            for name, term in terms.items()
        }
        loss = tf.add_n([self._cost(name, each.dtype) * each for name, each in reduced.items()])
        totals = {n: tf.reduce_sum(losses.mask(counted[n], term)) for n, term in terms.items()}
        return Regularisation(
            loss,
            reduced["entropy"],
            tf.nest.map_structure(tf.stop_gradient, totals),
            {name: tf.reduce_sum(tf.cast(each, loss.dtype)) for name, each in counted.items()},
        )

    def update(self, measured: Regularisation, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Adjust the multipliers; return metrics: mean divergences, and costs that change.

        Call it outside of what `exchange.differentiate` calls, after the optimizer's step.
        """
        metrics = {}
        for name, total in measured.totals.items():
            count = measured.counts[name]
            if name in self._multipliers:
                metrics[f"{name}_cost"] = self._multipliers[name].cost()
                self._multipliers[name].update(total, count, exchange)
            if name != "entropy":
                metrics[name] = total / count
            if self.distillation and name == self.distillation.metric:
                metrics[name] = self.distillation.measured(metrics[name])
        return metrics

    def _cost(self, name: str, dtype: tf.DType) -> Any:
        if self.distillation and name == self.distillation.metric:
            return self.distillation.cost(dtype)
        multiplier = self._multipliers.get(name)
        return multiplier.cost(dtype) if multiplier else self._costs[name]
