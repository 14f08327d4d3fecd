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
from impala_mm.config.flags import AUTO, Condition, OldName, default, flag, with_flag, with_number
from impala_mm.config.settings import Config, UpdateThreads

GROUP = "Policy gradient"
WORTH_COMPILING = 32  # optimizer steps of an update, from which compile_updates pays
_SEVERAL_PASSES = Condition("several --epochs", lambda c: "" if c.epochs > 1 else "with --epochs=1")
SEVERAL_STEPS = Condition(
    "several --epochs or --minibatches",
    lambda c: "" if c.epochs > 1 or c.minibatches != 1 else "with --epochs=1 and --minibatches=1",
)
_WORTH_COMPILING = Condition(
    f"at least {WORTH_COMPILING} optimizer steps per update",
    lambda c: "" if c.most_steps >= WORTH_COMPILING else f"with {c.most_steps} optimizer steps",
)


@dataclasses.dataclass(frozen=True)
class PolicyGradientSettings(
    AdvantageSettings, RegulariserSettings, NoveltySettings, TeacherSettings
):
    """The settings of a process of an algorithm of `policy_gradient`."""

    rounds: ClassVar[bool] = True
    ignored: ClassVar[frozenset[str]] = frozenset({"eval_epsilon"})
    OLD_NAMES: ClassVar = Config.OLD_NAMES | {"compile_epochs": OldName("compile_updates")}

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

    epochs: int = flag(
        1, group=GROUP, learner_only=True, least=1,
        text="Passes over each batch.")
    minibatches: int = flag(
        1, group=GROUP, learner_only=True, least=1, auto=True,
        text="Parts into which each pass divides a learner's batch, with an optimizer step for "
             "each. All learners shuffle alike, by seed. auto: parts of 64 steps, or of 4 whole "
             "unrolls, or the next larger ones that divide the batch.")
    minibatch_of: str = flag(
        "auto", group=GROUP, learner_only=True, choices=("auto", "unrolls", "steps"),
        only_with=SEVERAL_STEPS,
        text="What a minibatch is drawn from. unrolls: whole unrolls, whose steps a recurrent "
             "network reads one after the other. steps: single steps of all unrolls, which suits "
             "networks that remember nothing. auto: steps for such networks, otherwise unrolls.")
    compile_updates: bool = flag(
        True, group=GROUP, learner_only=True, only_with=_WORTH_COMPILING,
        text="Compile all passes over a batch with XLA, at the first update, where it pays: for "
             "one learner on a CPU, observations of fewer than 1,000 numbers, minibatches of "
             "single steps, and at least 32 optimizer steps per update. The first update takes "
             "some seconds longer, each of the others half the time.")
    recompute_advantages: bool = flag(
        False, group=GROUP, learner_only=True, only_with=_SEVERAL_PASSES,
        text="Compute values and advantages again before each pass but the first. Unset: the "
             "policy that played is judged once per batch.")
    rounds_overlap: bool = flag(
        False, group=GROUP, learner_only=True,
        text="Let actors play the next round while the learner trains on the last one, and while "
             "slower actors still play that one: they hardly wait, but the policy that plays is "
             "one update older (policy_lag 1).")
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
        """Refuse minibatches into which no batch can be divided, and two masters of the rate."""
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
        self.count_minibatches(of_steps=self.minibatch_of != "unrolls")

    @property
    def compiles_updates(self) -> bool:
        """Whether XLA may compile all passes over a batch."""
        return self.compile_updates and self.most_steps >= WORTH_COMPILING

    @property
    def update_threads(self) -> UpdateThreads:
        """Two where updates are compiled: nothing else runs in the thread of one."""
        return UpdateThreads(at_once=2) if self.compiles_updates else UpdateThreads()

    @property
    def most_steps(self) -> int:
        """The optimizer steps of an update, unless --target_kl ends it."""
        return self.epochs * self.count_minibatches(of_steps=self.minibatch_of != "unrolls")

    def count_minibatches(self, of_steps: bool) -> int:
        """Return the number of minibatches of each pass; they are of steps, or of whole unrolls.

        Raises ValueError if that number does not divide the batch.
        """
        size, of, each = self.batch_size, "--batch_size", 4
        if of_steps:
            size, of, each = size * self.unroll_length, "--batch_size x --unroll_length", 64
        numbers = [n for n in range(1, size + 1) if size % n == 0]
        count = self.minibatches
        if count == AUTO:
            return max(n for n in numbers if n == 1 or n * each <= size)
        if count > size:
            raise ValueError(
                f"--minibatches={count} is more than {of}={size}: a minibatch needs at least one "
                f"of them; use at most --minibatches={size}"
            )
        if size % count:
            below = max(n for n in numbers if n < count)
            above = min(n for n in numbers if n > count)
            raise ValueError(
                f"--minibatches={count} does not divide {of}={size}: use --minibatches={below} or "
                f"{above}"
            )
        return count


@dataclasses.dataclass(frozen=True)
class EpochSettings(PolicyGradientSettings):
    """The settings of a process that makes several passes over each batch, as PPO does."""

    unroll_length: int = default(Config, "unroll_length", 128)
    learning_rate: float = default(Config, "learning_rate", 0.0003)
    mlp_init_scale: float = default(Config, "mlp_init_scale", 2**0.5)
    epochs: int = default(PolicyGradientSettings, "epochs", 10)
    minibatches: int = default(PolicyGradientSettings, "minibatches", AUTO)
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
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse a target that no weights have."""
        super().__post_init__()
        steps = self.batch_size * self.unroll_length
        most = math.log(max(steps // 2, 1))  # where one action has all the weight
        if self.target_weight_kl >= most:
            raise ValueError(
                f"--target_weight_kl={self.target_weight_kl:g}: the weights of the better half of "
                f"one learner's batch of {steps:,} steps are at most {most:.3g} nats from equal "
                f"ones; give a smaller number, such as 0.1, or a larger batch"
            )
