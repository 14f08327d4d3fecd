"""The flags of --algorithm=dqn, r2d2 and pqn."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from impala_mm.algorithms.feature_settings import (
    RECORDED_GAMES,
    HindsightSettings,
    ShiftSettings,
    TeacherSettings,
)
from impala_mm.algorithms.parts.round_settings import RoundSettings
from impala_mm.config import replay_mix
from impala_mm.config.flags import AUTO, Condition, default, flag, with_flag
from impala_mm.config.settings import Config

GROUP = "Q-learning"
_PRIORITISED = Condition(
    "prioritised replay", lambda c: "" if "prioritised" in c.replay else f"with --replay={c.replay}"
)


def _with_schedule(name: str) -> Condition:
    """Return the condition that the share of random actions has this schedule."""
    return Condition(
        f"--epsilon_schedule={name}",
        lambda c: "" if c.schedule == name else f"with --epsilon_schedule={c.schedule}",
    )


@dataclasses.dataclass(frozen=True)
class ActionValueSettings(TeacherSettings):
    """The settings of a process of an algorithm that plays by the values of actions."""

    # fmt: off
    loss_reduction: str = default(Config, "loss_reduction", "mean")
    activation: str = default(Config, "activation", "relu")
    teacher_cost: float = default(TeacherSettings, "teacher_cost", AUTO)

    duelling: bool = flag(
        False, group=GROUP, kept_by="weights",
        text="Let the network compute the observation's value and the actions' advantages "
             "separately; the actions' values are their sum.")
    duelling_units: int = flag(
        0, group=GROUP, least=0, needs=with_flag("duelling"), kept_by="weights",
        text="Units of a hidden layer in each of the two parts of a duelling network (R2D2: 512). "
             "0: both are linear in the features.")
    value_distribution: str = flag(
        "none", group=GROUP, choices=("none", "categorical", "quantiles"), kept_by="weights",
        text="What is learnt of the return after an action. none: its mean. categorical: the "
             "probabilities of num_atoms returns (C51). quantiles: the returns at any level of "
             "probability (IQN). The priorities of unrolls are then the losses of distributions.")
    num_atoms: int = flag(
        51, group=GROUP, least=2, only_with=with_flag("value_distribution", "categorical"),
        kept_by="weights",
        text="Returns whose probabilities are learnt, with value_distribution=categorical.")
    v_min: float = flag(
        -10.0, group=GROUP, only_with=with_flag("value_distribution", "categorical"),
        kept_by="weights",
        text="Smallest return of value_distribution=categorical; smaller ones count as it.")
    v_max: float = flag(
        10.0, group=GROUP, only_with=with_flag("value_distribution", "categorical"),
        kept_by="weights",
        text="Largest return of value_distribution=categorical; larger ones count as it.")
    num_quantiles: int = flag(
        64, group=GROUP, learner_only=True, least=1,
        only_with=with_flag("value_distribution", "quantiles"),
        text="Levels of probability that are drawn for each step in an update, with "
             "value_distribution=quantiles.")
    num_policy_quantiles: int = flag(
        32, group=GROUP, least=1, only_with=with_flag("value_distribution", "quantiles"),
        text="Levels whose mean return decides which action is the best, with "
             "value_distribution=quantiles. Tests and evaluation use evenly spaced levels.")
    noisy: bool = flag(
        False, group=GROUP, kept_by="weights",
        text="Explore by noise, of a size that is trained, in the weights of all fully connected "
             "layers (NoisyNet), except that of IQN's levels, instead of random actions. Each "
             "environment has noise of its own, drawn again at every step; each step of the "
             "optimizer has the same for all it reads. Tests and evaluation have none.")
    noisy_scale: float = flag(
        0.5, group=GROUP, learner_only=True, least=0, only_with=with_flag("noisy"),
        text="Size of the noise at the start, with noisy: its deviation is this number divided by "
             "the square root of the number of a layer's inputs.")
    value_rescaling: float = flag(
        0.0, group=GROUP, learner_only=True, least=0, most=1, kept_by="weights",
        text="Learn h(value) = sign(value) (sqrt(|value| + 1) - 1) + value_rescaling x value "
             "instead of the value, for rewards of any size without clipping (R2D2: 0.001). 0: "
             "learn the value itself.")
    epsilon_schedule: str = flag(
        "auto", group=GROUP, choices=("auto", "ladder", "decay", "none"),
        text="Share of random actions. decay: the same in all environments, and falling over the "
             "run. ladder: a different one for each environment of the run, epsilon_base to the "
             "power of 1 to 8 (4.5 for a single one), for the whole run. none: no random actions. "
             "auto: none with noisy, otherwise ladder for r2d2 and decay for dqn and pqn. Tests "
             "and evaluation use eval_epsilon.")
    epsilon_base: float = flag(
        0.4, group=GROUP, least=0, most=1, only_with=_with_schedule("ladder"),
        text="Share of random actions in the first environment, with epsilon_schedule=ladder; the "
             "last one has its 8th power.")
    epsilon_start: float = flag(
        1.0, group=GROUP, learner_only=True, least=0, most=1, only_with=_with_schedule("decay"),
        text="Share of random actions at the start, with epsilon_schedule=decay.")
    epsilon_end: float = flag(
        0.01, group=GROUP, learner_only=True, least=0, most=1, only_with=_with_schedule("decay"),
        text="Share of random actions after epsilon_frames, with epsilon_schedule=decay.")
    epsilon_frames: float = flag(
        50_000, group=GROUP, learner_only=True, least=0, only_with=_with_schedule("decay"),
        text="Environment frames of all learners over which the share of random actions falls "
             "linearly from epsilon_start to epsilon_end.")
    # fmt: on

    computes_action_values: ClassVar[bool] = True
    usual_schedule: ClassVar[str] = "decay"
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"entropy_cost", "box_policy", "box_deviation", "advantage_scaling", "baseline_cost"}
        | {"value_normalization", "separate_networks", "policy_init_scale"}
    )

    @property
    def schedule(self) -> str:
        """The schedule of random actions that --epsilon_schedule stands for."""
        if self.epsilon_schedule != "auto":
            return self.epsilon_schedule
        return "none" if self.noisy else self.usual_schedule

    @property
    def noise_scale(self) -> float:
        """The size of the noise at the start; 0: nothing has noise."""
        return self.noisy_scale if self.noisy else 0.0

    @property
    def full_teacher_cost(self) -> float:
        """The teacher's cost at the start; as published, if --teacher_cost is auto."""
        if self.teacher_cost != AUTO:
            return self.teacher_cost
        plain = self.distilled == ("policy",) and self.value_distribution == "none"
        return 3.0 if plain else 1.0

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        super().__post_init__()
        if self.value_distribution == "categorical":
            self._check_categorical()
        if self.value_distribution == "quantiles" and not math.isfinite(self.huber_delta):
            raise ValueError(
                f"--value_distribution=quantiles needs a finite --huber_delta, not "
                f"{self.huber_delta}: squared errors do not lead to quantiles; 1 is usual"
            )
        if self.noisy and not self.noisy_scale:
            raise ValueError("--noisy with --noisy_scale=0 has no noise: raise it, or leave both")
        if self.noisy and self.mlp_init_scale:
            raise ValueError(
                f"--noisy with --mlp_init_scale={self.mlp_init_scale:g}: noisy layers have initial "
                f"weights of their own: leave one of them out"
            )

    def refuse_typed(self) -> None:
        """Refuse an --epsilon that was meant for the exploration."""
        if self.epsilon > 0.05:
            raise ValueError(
                f"--epsilon={self.epsilon:g}: it is a constant of the optimizer, of 0.05 at most "
                f"here; --epsilon_start, --epsilon_end and --epsilon_frames say how often actions "
                f"are random"
            )

    def _check_categorical(self) -> None:
        if self.v_min >= self.v_max:
            raise ValueError(
                f"--v_min={self.v_min:g} is not below --v_max={self.v_max:g}: "
                f"--value_distribution=categorical learns the probabilities of returns between them"
            )
        if self.value_rescaling:
            raise ValueError(
                f"--value_distribution=categorical has a range of returns, --v_min to --v_max, "
                f"which --value_rescaling={self.value_rescaling:g} would change: give "
                f"--value_rescaling=0, or --value_distribution=quantiles"
            )


@dataclasses.dataclass(frozen=True)
class QLearningSettings(ActionValueSettings, ShiftSettings, HindsightSettings):
    """The settings of a process of Q-learning with replay and a target network."""

    # fmt: off
    batch_size: int = default(Config, "batch_size", 32)
    learning_rate_schedule: str = default(Config, "learning_rate_schedule", "constant")

    n_steps: int = flag(
        1, group=GROUP, least=1,
        text="Number of rewards in a target before it uses the target network's value. Fewer where "
             "the episode ends: no value follows a termination, and the value of the episode's "
             "last observation follows a truncation. R2D2: fewer at the end of the unroll, too.")
    double_q: bool = flag(
        True, group=GROUP, learner_only=True,
        text="Double Q-learning: the network chooses the action whose value the target network "
             "gives. Unset: the target network's largest value.")
    num_target_quantiles: int = flag(
        64, group=GROUP, learner_only=True, least=1,
        only_with=with_flag("value_distribution", "quantiles"),
        text="Levels that are drawn for the target of each step, with "
             "value_distribution=quantiles.")
    value_shifts: int = flag(
        1, group=GROUP, learner_only=True, least=1, needs=with_flag("random_shift"),
        text="Shifts over which an update's loss is averaged, with random_shift (DrQ's M).")
    target_shifts: int = flag(
        1, group=GROUP, learner_only=True, least=1, needs=with_flag("random_shift"),
        text="Shifts over which each target is averaged, with random_shift (DrQ's K).")
    target_period: int = flag(
        1, group=GROUP, learner_only=True, least=1,
        text="Updates between two times that the target network follows the network.")
    target_share: float = flag(
        0.005, group=GROUP, learner_only=True, least=0, most=1,
        text="Share of the way to the network that the target network then moves. 1: it becomes a "
             "copy.")
    largest_error_share: float = flag(
        0.9, group=GROUP, learner_only=True, least=0, most=1, only_with=_PRIORITISED,
        text="Weight of an unroll's largest error in its priority; the rest is the mean error "
             "(R2D2's eta).")
    td_cost: float = flag(
        1.0, group=GROUP, learner_only=True, least=0,
        text="Weight in the loss of the errors of values from their targets. 0: the network learns "
             "only from a teacher (DAgger, with teacher_method=constant), or from the actions that "
             "were played (behaviour cloning, with cql_cost).")
    cql_cost: float = flag(
        0.0, group=GROUP, learner_only=True, least=0,
        text="Weight in the loss of the mean of logsumexp(Q / cql_temperature) - Q(a) / "
             "cql_temperature for the actions a that were played, which keeps the values of others "
             "low (conservative Q-learning, CQL). It is also the cross-entropy of softmax(Q / "
             "cql_temperature) to these actions. 1 is usual for recorded data. In a run with "
             "recorded games, only their actions count.")
    cql_temperature: float = flag(
        0.1, group=GROUP, learner_only=True, least=1e-6, only_with=with_flag("cql_cost"),
        text="Temperature of cql_cost, in units of reward.")
    margin_cost: float = flag(
        0.0, group=GROUP, learner_only=True, least=0, needs=RECORDED_GAMES,
        text="Weight in the loss, for recorded games, of how far the value of any other action, "
             "plus teacher_margin, is above that of the action that was played (DQfD: 1).")
    # fmt: on

    learns_from_any_policy: ClassVar[bool] = True

    @property
    def stops_learning(self) -> bool:
        """Whether nothing is learnt after the offline updates: recorded actions alone count."""
        return bool(self.offline_updates) and not (
            self.td_cost or self.distils or self.teacher_data_share
        )

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        super().__post_init__()
        if not (self.td_cost or self.distils or self.cql_cost or self.margin_cost):
            raise ValueError(
                f"--td_cost={self.td_cost:g}: without the cost of a --teacher, --cql_cost and "
                f"--margin_cost nothing is left to learn: give one of them, or leave it out"
            )
        if self.her_ratio and self.n_steps > 1:
            raise ValueError(
                f"--her_ratio={self.her_ratio} with --n_steps={self.n_steps}: each step has goals "
                f"of its own, so that a target has one reward: use --n_steps=1"
            )
        if self.replay and replay_mix.parse(self.replay).who_need("features"):
            raise ValueError(
                f"--replay={self.replay}: a Q-network records no features, which this replay "
                f"compares: use uniform or prioritised instead"
            )


@dataclasses.dataclass(frozen=True)
class DQNSettings(QLearningSettings):
    """The settings of a process of DQN."""

    # As in Dopamine: 32 replayed steps are trained on for 4 new ones, out of a million.
    FOR_ATARI: ClassVar[Mapping[str, Any]] = {
        "batch_size": 8,
        "unroll_length": 4,
        "replay": "uniform:1:250000",
        "replay_ratio": 1.0,
        "replay_min": 5000,
        "target_period": 2000,
        "target_share": 1.0,
        "epsilon_frames": 1e6,
        "learning_rate": 0.0000625,
        "epsilon": 0.00015,
    }

    unroll_length: int = default(Config, "unroll_length", 8)
    replay: str = default(Config, "replay", "queue:0.125,prioritised:0.875:20000")
    learning_rate: float = default(Config, "learning_rate", 0.0005)
    gradients_clipping: float = default(Config, "gradients_clipping", 10.0)
    huber_delta: float = default(Config, "huber_delta", 1.0)


@dataclasses.dataclass(frozen=True)
class R2D2Settings(QLearningSettings):
    """The settings of a process of R2D2."""

    # fmt: off
    replay: str = default(
        Config, "replay", "queue:0.25,prioritised:0.75:10000:exponent=0.9:correction=0.6")
    reward_clipping: str = default(Config, "reward_clipping", "none")
    discounting: float = default(Config, "discounting", 0.997)
    learning_rate: float = default(Config, "learning_rate", 0.0005)
    # Published are 40, and an epsilon of 0.001, for losses that are summed over an unroll. Here
    # they are means, whose gradients are 20 times smaller.
    gradients_clipping: float = default(Config, "gradients_clipping", 2.0)
    n_steps: int = default(QLearningSettings, "n_steps", 5)
    duelling: bool = default(QLearningSettings, "duelling", True)
    value_rescaling: float = default(QLearningSettings, "value_rescaling", 0.001)
    target_period: int = default(QLearningSettings, "target_period", 100)
    target_share: float = default(QLearningSettings, "target_share", 1.0)

    burn_in: int = flag(
        10, group="R2D2", least=0,
        text="Number of entries of the previous unroll that both networks read, without gradients, "
             "to fill their memory before an unroll's steps.")
    # fmt: on

    usual_schedule: ClassVar[str] = "ladder"

    def __post_init__(self) -> None:
        """Refuse lengths that do not fit together."""
        super().__post_init__()
        if self.her_ratio and self.burn_in:
            raise ValueError(
                f"--her_ratio={self.her_ratio} with --burn_in={self.burn_in}: steps with other "
                f"goals are trained one by one: use --burn_in=0, or --algorithm=dqn"
            )
        if self.burn_in > self.unroll_length:
            raise ValueError(
                f"--burn_in={self.burn_in} is longer than --unroll_length={self.unroll_length}: "
                f"lower it, or raise that"
            )
        if self.n_steps > self.unroll_length:
            raise ValueError(
                f"--n_steps={self.n_steps} is longer than --unroll_length={self.unroll_length}, "
                f"so no target would be whole: lower it, or raise that"
            )


@dataclasses.dataclass(frozen=True)
class PQNSettings(ActionValueSettings, RoundSettings):
    """The settings of a process of PQN."""

    # As published: 128 environments of 32 steps, and two passes over them in parts of 128 steps.
    FOR_ATARI: ClassVar[Mapping[str, Any]] = {
        "batch_size": 128,
        "num_envs": 64,
        "epochs": 2,
        "minibatches": 32,
        "learning_rate_schedule": "constant",
        "epsilon_end": 0.001,
        "epsilon_frames": 4e6,
    }

    # fmt: off
    batch_size: int = default(Config, "batch_size", 16)
    num_envs: int = default(Config, "num_envs", 8)
    unroll_length: int = default(Config, "unroll_length", 32)
    mlp_sizes: str = default(Config, "mlp_sizes", "128,128")
    layer_norm: bool = default(Config, "layer_norm", True)
    optimizer: str = default(Config, "optimizer", "radam")
    learning_rate: float = default(Config, "learning_rate", 0.00025)
    gradients_clipping: float = default(Config, "gradients_clipping", 10.0)
    epochs: int = default(RoundSettings, "epochs", 4)
    minibatches: int = default(RoundSettings, "minibatches", AUTO)
    epsilon_end: float = default(ActionValueSettings, "epsilon_end", 0.05)

    q_lambda: float = flag(
        0.65, group="PQN", learner_only=True, least=0, most=1,
        text="Lambda of the targets: at 0 they have one reward and the largest value that follows, "
             "at 1 all rewards up to the end of the unroll.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse recorded games."""
        for name in ("offline_updates", "teacher_data_share"):
            if given := getattr(self, name):
                raise ValueError(
                    f"--{name}={given:g}: --algorithm=pqn learns only from rounds of its newest "
                    f"values: leave it out, or use --algorithm=dqn"
                )
        super().__post_init__()
