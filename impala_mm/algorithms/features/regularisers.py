"""Regularisers of a policy: its divergences from other policies.

    kl_pi_mu     KL(pi || mu)     the policy does little that the behaviour policy mu did not do
    kl_mu_pi     KL(mu || pi)     the policy still does what mu did
    kl_ref_pi    KL(ref || pi)    the policy still does what a reference policy does

For V-MPO, `kl_mean` and `kl_deviation` may take the place of KL(mu || pi): the divergences of a
normal distribution's mean alone, and of its deviation alone.

Each has a fixed cost, or a target at which a Lagrange multiplier holds its mean over the steps of
all learners. The policy's entropy, which every actor-critic has, is in `actor_critic`.
"""

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature import Added, Feature, Host, Reading, Student, mean
from impala_mm.algorithms.feature_settings import RegulariserSettings
from impala_mm.algorithms.interface import zero_entry
from impala_mm.algorithms.parts.lagrange import Cost
from impala_mm.algorithms.parts.normals import decoupled_kl
from impala_mm.algorithms.types import LoadedPolicy, PolicyLoader, Role
from impala_mm.config import flags
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.action_parts import Box
from impala_mm.environments.types import EnvironmentSpec


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return the divergences that the flags ask for."""
    if not isinstance(config, RegulariserSettings) or role is not Role.LEARNER:
        return []
    kinds: dict[str, type[Divergence]] = {
        "kl_pi_mu": FromBehaviour,
        "kl_mu_pi": ToBehaviour,
        "kl_ref_pi": FromReference,
    }
    if getattr(config, "decoupled_kl", False):
        del kinds["kl_mu_pi"]
        kinds |= {"kl_mean": OfMeans, "kl_deviation": OfDeviations}
    return [
        kind(name, config, environment)
        for name, kind in kinds.items()
        if getattr(config, f"{name}_cost", 0) or math.isfinite(getattr(config, f"target_{name}"))
    ]


class Divergence(Feature):
    """A divergence of the policy, which its cost keeps small."""

    def __init__(self, name: str, config: RegulariserSettings, environment: EnvironmentSpec):
        self._name, self._config = name, config
        self._environment, self._actions = environment, environment.actions
        self._cost = Cost(
            f"{name}_cost",
            getattr(config, f"{name}_cost", 0.0),
            getattr(config, f"target_{name}"),
            initial=1.0,
            speed=config.multiplier_speed,
        )
        self.carried = self._cost.variables

    def _terms(self, student: Student, prepared: Any) -> tf.Tensor:
        """Return the divergences of steps, [T, N]."""
        raise NotImplementedError

    def _counted(self, student: Student) -> tf.Tensor | None:
        """Return where they count, bool; None: at all steps."""
        return None

    def loss(self, student: Student, prepared: Any) -> Added:
        """Return the divergence times its cost."""
        terms, counted = self._terms(student, prepared), self._counted(student)
        reduced = student.reduce(terms, counted)
        return Added(
            self._cost.read(reduced.dtype) * reduced, {self._name: student.sums(terms, counted)}
        )

    def after(
        self, measured: Mapping[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Adjust the cost; return it, if it changes, and the mean divergence."""
        (sums,) = measured.values()
        return self._cost.update(sums, exchange) | {self._name: mean(sums)}


class FromBehaviour(Divergence):
    """KL(pi || mu), on new unrolls: old ones would draw the policy back to what played them."""

    def _counted(self, student: Student) -> tf.Tensor | None:
        return student.fresh

    def _terms(self, student: Student, prepared: Any) -> tf.Tensor:
        return student.policy.kl(student.make(student.behaviour))


class ToBehaviour(FromBehaviour):
    """KL(mu || pi), on new unrolls."""

    def _terms(self, student: Student, prepared: Any) -> tf.Tensor:
        return student.make(student.behaviour).kl(student.policy)


class OfMeans(FromBehaviour):
    """The divergence from mu to a distribution with the mean of pi and the deviation of mu."""

    def attach(self, host: Host) -> None:
        """Raise UserMistake if the actions are not one Box."""
        if not isinstance(self._actions.parts, Box):
            raise UserMistake(
                f"--decoupled_kl holds the mean and the deviation of numbers (Box) apart, and the "
                f"actions of {self._config.level_name} are {self._actions.parts}: leave it out"
            )

    def _terms(self, student: Student, prepared: Any) -> tf.Tensor:
        return self._apart(student)[0]

    def _apart(self, student: Student) -> list[tf.Tensor]:
        """Return the divergences of means and of deviations, [T, N] each."""
        each = student.make(student.behaviour), student.policy
        mu, pi = (getattr(policy, "flat", policy) for policy in each)  # of arrays: `Shaped`
        return [tf.reduce_sum(kl, -1) for kl in decoupled_kl(mu, pi)]


class OfDeviations(OfMeans):
    """The divergence from mu to a distribution with the mean of mu and the deviation of pi."""

    def _terms(self, student: Student, prepared: Any) -> tf.Tensor:
        return self._apart(student)[1]


class FromReference(Divergence):
    """KL(ref || pi), from the policy that --reference names, or one whose parameters are all 0."""

    _reference: LoadedPolicy | None = None

    def attach(self, host: Host) -> None:
        """Take the number of parameters of the policy."""
        self._num_parameters = host.distribution.num_parameters

    def load_policies(self, load: PolicyLoader) -> None:
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
        start = policy.initial_state(1)
        unroll = tf.nest.map_structure(lambda x: x[tf.newaxis], zero_entry(self._environment))
        if policy.judge_unroll(unroll, start).parameters is None:
            raise UserMistake(
                f"--reference={config.reference}: its --algorithm={policy.config.algorithm} has no "
                f"distribution of actions, from which there is a divergence: give the run of an "
                f"algorithm that draws its actions from one, such as impala"
            )
        # The state of normalised rewards has no part in what the policy is.
        if len(tf.nest.flatten(start)) > bool(policy.config.normalize_rewards):
            flags.warn(
                f"the policy of --reference={config.reference} remembers earlier observations, and "
                f"begins each unroll without a memory: for the first entries it is another policy "
                f"than the one that was trained; a larger --unroll_length makes them fewer"
            )
        self._reference = policy

    def prepare(self, batch: Batch, reading: Reading) -> tuple[Batch, Any]:
        """Return the batch, and the parameters of the reference policy, [T+1, B, P]."""
        if self._reference is None:
            shape = [*batch.unrolls.first.shape, self._num_parameters]
            return batch, tf.zeros(shape)
        # The entries are those that actors sent: a loaded policy normalises them itself.
        start = self._reference.initial_state(tf.shape(batch.weight)[0])
        judged = self._reference.judge_unroll(batch.unrolls, start)
        return batch, tf.stop_gradient(judged.parameters)

    def _terms(self, student: Student, prepared: Any) -> tf.Tensor:
        return student.make(prepared).kl(student.policy)
