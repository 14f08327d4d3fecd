"""The flags of --algorithm=ppo, a2c, vpg, awr and vmpo, which share most of them.

The defaults of PPO, AWR and V-MPO are the usual ones for simulated robots (arXiv 1707.06347 and its
implementations): 2,048 steps per update, ten passes over them in minibatches of 64, small separate
networks with orthogonal initial weights, normalised observations and rewards. Games of Atari have
defaults of their own.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from impala_mm.algorithms.feature_settings import (
    NoveltySettings,
    RegulariserSettings,
    TeacherSettings,
)
from impala_mm.algorithms.parts.advantage_settings import AdvantageSettings
from impala_mm.algorithms.parts.round_settings import SEVERAL_PASSES, SEVERAL_STEPS, RoundSettings
from impala_mm.config.flags import AUTO, arguments, default, flag, with_flag, with_number
from impala_mm.config.settings import Config

GROUP = "Policy gradient"


@dataclasses.dataclass(frozen=True)
class PolicyGradientSettings(
    RoundSettings, AdvantageSettings, RegulariserSettings, NoveltySettings, TeacherSettings
):
    """The settings of a process of an algorithm of `policy_gradient`."""

    ignored: ClassVar[frozenset[str]] = frozenset({"eval_epsilon"})

    FOR_ATARI: ClassVar[Mapping[str, Any]] = {
        "batch_size": 32,
        "num_envs": 16,
        "separate_networks": False,
        "normalize_rewards": False,
        "entropy_cost": 0.01,
        "fire_after_life_loss": True,
    }

    # fmt: off
    batch_size: int = default(Config, "batch_size", 16)
    num_envs: int = default(Config, "num_envs", 8)
    loss_reduction: str = default(Config, "loss_reduction", "mean")
    gradients_clipping: float = default(Config, "gradients_clipping", 0.5)
    separate_networks: bool = default(Config, "separate_networks", True)
    normalize_observations: bool = default(Config, "normalize_observations", True)
    normalize_rewards: bool = default(Config, "normalize_rewards", True)
    subtract_mean_image: bool = default(Config, "subtract_mean_image", AUTO)
    entropy_cost: float = default(Config, "entropy_cost", 0.0)
    advantage_scaling: str = default(Config, "advantage_scaling", "batch")
    box_policy: str = default(Config, "box_policy", "normal")

    recompute_advantages: bool = flag(
        False, group=GROUP, learner_only=True, only_with=SEVERAL_PASSES,
        text="Compute values and advantages again before each pass but the first. Unset: the "
             "policy that played is judged once per batch.")
    positive_advantages: bool = flag(
        False, group=GROUP, learner_only=True,
        text="Learn only from actions whose scaled advantage is positive.")
    target_kl: float = flag(
        float("inf"), group=GROUP, learner_only=True, least=0, only_with=SEVERAL_STEPS,
        text="Divergence from the policy that played, in nats (approx_kl, averaged over all "
             "learners), above which the passes over a batch end. inf: they are always completed.")
    learning_rate_kl: float = flag(
        0.0, group=GROUP, learner_only=True, least=0,
        needs=SEVERAL_STEPS | with_flag("rounds_overlap"),
        text="Divergence KL(mu || pi) from the policy that played to the one in training, in nats, "
             "that the learning rate follows in place of learning_rate_schedule, usually 0.01. It "
             "begins at learning_rate; where the mean over an update and all learners is above "
             "twice this number, the next update's rate is 1.5 times smaller, where it is below "
             "half of it 1.5 times larger, within 1e-6 and 0.01. 0: off.")
    value_clip: float = flag(
        float("inf"), group=GROUP, learner_only=True, least=0, only_with=SEVERAL_STEPS,
        text="Change of a value during the passes over a batch beyond which the value is clipped "
             "in the baseline's loss, in the unit of value_normalization. inf: no clipping.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse two masters of the rate."""
        super().__post_init__()
        if self.learning_rate_kl:
            given = f"--learning_rate_kl={self.learning_rate_kl:g}"
            if self.target_kl < math.inf:
                raise ValueError(
                    f"{given}: --target_kl={self.target_kl:g} ends the passes that would show the "
                    f"divergence: leave one of them out"
                )
            if self.teacher_rate:
                raise ValueError(
                    f"{given}: --teacher_rate={self.teacher_rate:g} sets the rate, too: leave one "
                    f"of them out"
                )


@dataclasses.dataclass(frozen=True)
class EpochSettings(PolicyGradientSettings):
    """The settings of a process that makes several passes over each batch, as PPO does."""

    unroll_length: int = default(Config, "unroll_length", 128)
    learning_rate: float = default(Config, "learning_rate", 0.0003)
    mlp_init_scale: float = default(Config, "mlp_init_scale", 2**0.5)
    epochs: int = default(RoundSettings, "epochs", 10)
    minibatches: int = default(RoundSettings, "minibatches", AUTO)
    # There are hundreds of optimizer steps per batch, and each moves the multipliers.
    multiplier_speed: float = default(RegulariserSettings, "multiplier_speed", 0.01)


@dataclasses.dataclass(frozen=True)
class PPOSettings(EpochSettings):
    """The settings of a process of PPO."""

    FOR_ATARI: ClassVar[Mapping[str, Any]] = {
        **PolicyGradientSettings.FOR_ATARI,
        "unroll_length": 64,
        "learning_rate": 0.00025,
        "epochs": 4,
        "clip": 0.1,
    }

    # fmt: off
    clip: float = flag(
        0.2, group="PPO", infinite=True, learner_only=True, least=0,
        only_with=SEVERAL_STEPS | with_flag("rounds_overlap"),
        text="Change of an action's probability, as a share of that under the policy that "
             "played, beyond which it earns nothing more: PPO's epsilon.")
    # fmt: on


@dataclasses.dataclass(frozen=True)
class A2CSettings(PolicyGradientSettings):
    """The settings of a process of A2C."""

    unroll_length: int = default(Config, "unroll_length", 16)
    learning_rate: float = default(Config, "learning_rate", 0.0008)
    # fmt: off
    largest_ratio: float = flag(
        1.0, group="A2C", infinite=True, learner_only=True, least=0,
        only_with=SEVERAL_STEPS | with_flag("rounds_overlap"),
        text="Largest importance weight of a step: the ratio of its action's probability under the "
             "policy to that under the one that played. It matters with --rounds_overlap, or with "
             "several minibatches or epochs. inf: no limit.")
    # fmt: on


@dataclasses.dataclass(frozen=True)
class VPGSettings(PolicyGradientSettings):
    """The settings of a process of VPG."""

    unroll_length: int = default(Config, "unroll_length", 128)
    learning_rate: float = default(Config, "learning_rate", 0.003)
    gae_lambda: float = default(PolicyGradientSettings, "gae_lambda", 1.0)


@dataclasses.dataclass(frozen=True)
class AWRSettings(EpochSettings):
    """The settings of a process of AWR."""

    # fmt: off
    temperature: float = flag(
        1.0, group="AWR", infinite=True, learner_only=True, least=1e-3,
        text="Scaled advantage at which an action's weight is e times that of an average one. A "
             "lower temperature learns from fewer actions. inf: all weights are 1, which is "
             "behaviour cloning.")
    largest_weight: float = flag(
        20.0, group="AWR", infinite=True, learner_only=True, least=1,
        only_with=with_number("temperature"),
        text="Largest weight of an action. inf: no limit.")
    # fmt: on


@dataclasses.dataclass(frozen=True)
class VMPOSettings(EpochSettings):
    """The settings of a process of V-MPO."""

    target_kl_mu_pi: float = default(PolicyGradientSettings, "target_kl_mu_pi", 0.01)
    # fmt: off
    temperature: float = flag(
        1.0, group="V-MPO", learner_only=True, least=1e-6, most=1e6,
        text="Initial temperature of the softmax over the advantages of the better half of a "
             "batch, which gives the weights of its actions; a Lagrange multiplier then adjusts "
             "it.")
    target_weight_kl: float = flag(
        0.1, group="V-MPO", learner_only=True, least=0,
        text="Divergence of these weights from equal ones, in nats, at which the temperature "
             "holds them. The smaller it is, the more evenly the better half is learnt from.")
    temperature_speed: float = flag(
        0.1, group="V-MPO", learner_only=True, least=0, most=10,
        text="Largest change of the temperature's logarithm in one update; see multiplier_speed.")
    decoupled_kl: bool = flag(
        False, group="V-MPO", learner_only=True,
        text="For actions of numbers (Box): hold the divergences of the mean alone and of the "
             "deviation alone at targets of their own, target_kl_mean and target_kl_deviation, in "
             "place of KL(mu || pi).")
    target_kl_mean: float = flag(
        0.01, group="V-MPO", learner_only=True, least=0, only_with=with_flag("decoupled_kl"),
        text="With decoupled_kl: mean of KL(mu || pi), in nats, for a policy pi whose deviation is "
             "that of the policy mu that played, at which a Lagrange multiplier holds it.")
    target_kl_deviation: float = flag(
        5e-5, group="V-MPO", learner_only=True, least=0, only_with=with_flag("decoupled_kl"),
        text="The same for a policy whose mean is that of the policy that played.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse a target that no weights have, and targets for the same."""
        super().__post_init__()
        for name in ("target_kl_mu_pi", "kl_mu_pi_cost"):
            if self.decoupled_kl and getattr(self, name) != getattr(type(self), name):
                (given,) = arguments(self, [name])
                raise ValueError(
                    f"{given} with --decoupled_kl: give --target_kl_mean and --target_kl_deviation "
                    f"in its place"
                )
        steps = self.batch_size * self.unroll_length
        most = math.log(max(steps // 2, 1))  # where one action has all the weight
        if self.target_weight_kl >= most:
            raise ValueError(
                f"--target_weight_kl={self.target_weight_kl:g}: the weights of the better half of "
                f"one learner's batch of {steps:,} steps are at most {most:.3g} nats from equal "
                f"ones; give a smaller number, such as 0.1, or a larger batch"
            )
