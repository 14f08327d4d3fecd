"""Regularisers of a policy: its entropy, and its divergences from other policies.

    entropy      -H(pi)           the policy stays random
    kl_pi_mu     KL(pi || mu)     the policy does little that the behaviour policy mu did not do
    kl_mu_pi     KL(mu || pi)     the policy still does what mu did
    kl_ref_pi    KL(ref || pi)    the policy still does what a reference policy does

Each has a fixed cost, or a target at which a Lagrange multiplier holds its mean over the steps of
all learners. An algorithm makes one `Regularisers` and calls it in each update:

    self._regularisers = Regularisers(config, environment.actions)      carried: its `variables`
    measured = self._regularisers.measure(policy, behaviour, reference, live, weight, reduction)
    total = policy_loss + baseline_cost * baseline_loss + measured.loss            in the loss
    metrics |= self._regularisers.update(measured, exchange)               after the optimizer
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses
from impala_mm.algorithms.distributions import Distribution
from impala_mm.algorithms.entropy_limits import why_unreachable
from impala_mm.algorithms.lagrange import Multiplier
from impala_mm.algorithms.regulariser_settings import RegulariserSettings
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.actions import ActionSpec, UnsuitableActions

# By quantity, the initial cost of a multiplier if the fixed cost is 0.
_INITIAL = {"entropy": 0.01, "kl_pi_mu": 1.0, "kl_mu_pi": 1.0, "kl_ref_pi": 1.0}


class Regularisation(NamedTuple):
    """The regularisers of a batch, or of a part of it."""

    loss: tf.Tensor  # float32 []: the sum of all terms, each times its cost
    entropy: tf.Tensor  # float32 []: the negative entropy, combined as the loss is
    totals: dict[str, tf.Tensor]  # by quantity, the sum over live steps; without a gradient
    count: tf.Tensor  # float32 []: the number of these steps


class Regularisers:
    """The regularisers that the flags ask for, and the multipliers of those with a target."""

    def __init__(self, config: RegulariserSettings, actions: ActionSpec):
        """Raise UnsuitableActions if --target_entropy is one that no policy can reach."""
        self._costs = {name: getattr(config, f"{name}_cost") for name in _INITIAL}
        targets = {name: getattr(config, f"target_{name}") for name in _INITIAL}
        targets = {name: target for name, target in targets.items() if math.isfinite(target)}
        if "entropy" in targets and (
            why := why_unreachable(targets["entropy"], actions, config.box_policy)
        ):
            raise UnsuitableActions(f"--target_entropy={config.target_entropy:g}: {why}")
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

    def uses(self, name: str) -> bool:
        """Return whether a quantity has a cost or a target."""
        return bool(self._costs[name]) or name in self._multipliers

    def measure(
        self,
        policy: Distribution,
        behaviour: Distribution,
        reference: Distribution | None,
        live: tf.Tensor,
        weight: tf.Tensor,
        reduction: str,
    ) -> Regularisation:
        """Return the regularisers of the policy at transitions [T, B].

        `reference` may be None unless `uses("kl_ref_pi")`. `live`, `weight` and `reduction` are
        those of `losses.reduce`. Gradients flow into `policy` alone.
        """
        quantities: dict[str, Callable[[], tf.Tensor]] = {
            "entropy": policy.entropy,
            "kl_pi_mu": lambda: policy.kl(behaviour),
            "kl_mu_pi": lambda: behaviour.kl(policy),
            "kl_ref_pi": lambda: _given(reference).kl(policy),
        }
        terms = {
            name: compute()
            for name, compute in quantities.items()
            if name == "entropy" or self.uses(name)
        }
        reduced = {
            name: losses.reduce(_sign(name) * term, live, weight, reduction)
            for name, term in terms.items()
        }
        loss = tf.add_n([self._cost(name) * each for name, each in reduced.items()])
        totals = {name: tf.reduce_sum(losses.mask(live, term)) for name, term in terms.items()}
        return Regularisation(
            loss,
            reduced["entropy"],
            tf.nest.map_structure(tf.stop_gradient, totals),
            tf.reduce_sum(tf.cast(live, tf.float32)),
        )

    def update(self, measured: Regularisation, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Adjust the multipliers; return metrics: mean divergences, and costs that change.

        Call it outside of what `exchange.differentiate` calls, after the optimizer's step.
        """
        metrics = {}
        for name, total in measured.totals.items():
            if name in self._multipliers:
                metrics[f"{name}_cost"] = self._multipliers[name].cost()
                self._multipliers[name].update(total, measured.count, exchange)
            if name != "entropy":
                metrics[name] = total / measured.count
        return metrics

    def _cost(self, name: str) -> Any:
        multiplier = self._multipliers.get(name)
        return multiplier.cost() if multiplier else self._costs[name]


def _sign(name: str) -> float:
    """Return the sign of a quantity in the loss: the entropy is raised, the others are lowered."""
    return -1.0 if name == "entropy" else 1.0


def _given(reference: Distribution | None) -> Distribution:
    if reference is None:
        raise ValueError("kl_ref_pi has a cost, and so `measure` needs a reference policy")
    return reference
