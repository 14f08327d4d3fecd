"""The flags of algorithms with a policy and Q-networks, and their defaults for those of all."""

import dataclasses
import itertools
import os
from typing import ClassVar

from impala_mm.algorithms.feature_settings import (
    HindsightSettings,
    ShiftSettings,
    TeacherSettings,
)
from impala_mm.config.flags import (
    default,
    flag,
    whole_numbers,
    with_flag,
    without_flag,
)
from impala_mm.config.settings import Config, UpdateThreads

_GROUP = "Policy and Q-networks"
_SAC, _TD3, _MPO, _IQL = "SAC", "TD3", "MPO", "IQL"
_TRAINED = without_flag("fixed_temperature")
_OF_NUMBERS = without_flag("discrete_sac")
# Multiplications in a product of matrices from which two threads make it faster than one.
_WORTH_TWO_THREADS = 4_000_000


@dataclasses.dataclass(frozen=True)
class QPolicySettings(ShiftSettings, HindsightSettings, TeacherSettings):
    """The settings of a process of an algorithm with a policy and Q-networks."""

    own_replay: ClassVar[bool] = True
    learns_from_any_policy: ClassVar[bool] = True
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"entropy_cost", "advantage_scaling", "baseline_cost", "value_normalization"}
        | {"huber_delta", "loss_reduction", "separate_networks", "optimizer", "decay", "momentum"}
        | {"eval_epsilon"}
    )

    # fmt: off
    batch_size: int = default(Config, "batch_size", 4)
    unroll_length: int = default(Config, "unroll_length", 8)
    num_envs: int = default(Config, "num_envs", 4)
    loss_reduction: str = default(Config, "loss_reduction", "mean")  # the only one that it has
    learning_rate: float = default(Config, "learning_rate", 0.0003)
    learning_rate_schedule: str = default(Config, "learning_rate_schedule", "constant")
    mlp_sizes: str = default(Config, "mlp_sizes", "256,256")
    activation: str = default(Config, "activation", "relu")
    # An optimizer step takes some milliseconds, and two or three exchanges.
    cycle_ms: float = default(Config, "cycle_ms", 0.1)

    critic_rate: float = flag(
        0.001, group=_GROUP, learner_only=True, least=0,
        text="Learning rate of the Q-networks at the start of the run; it changes in proportion to "
             "that of the policy.")
    target_share: float = flag(
        0.005, group=_GROUP, learner_only=True, least=0, most=1,
        text="Share of the way to the Q-networks that their targets move in each optimizer step. "
             "1: they become copies.")
    target_period: int = flag(
        1, group=_GROUP, learner_only=True, least=1,
        text="Optimizer steps, for TD3, MPO and IQL those of the policy, between two times that "
             "the targets move.")
    updates_per_step: float = flag(
        1.0, group=_GROUP, learner_only=True, least=0,
        text="Optimizer steps for each new step of a learner's environments; one update of the "
             "learner makes all those of its batch_size new unrolls: a whole number, and at least "
             "one.")
    minibatch_steps: int = flag(
        256, group=_GROUP, learner_only=True, least=1,
        text="Steps that each learner trains on in one optimizer step: the new ones once each, and "
             "others from the replay.")
    replay_steps: int = flag(
        1_000_000, group=_GROUP, learner_only=True, least=1,
        text="Newest steps that each learner replays.")
    random_steps: int = flag(
        5_000, group=_GROUP, learner_only=True, least=0,
        text="Steps of each learner's environments before its first update, with random actions, "
             "unless the policy was trained before (offline_updates, mode=train_from).")
    num_critics: int = flag(
        2, group=_GROUP, least=1, most=100,
        text="Q-networks.")
    goal_critics: int = flag(
        2, group=_GROUP, learner_only=True, least=1,
        text="Q-networks whose least value is the goal of all; of more than these, each optimizer "
             "step draws others.")
    policy_value: str = flag(
        "least", group=_GROUP, choices=("least", "mean", "first"),
        text="Value of an action that the policy learns from (IQL's always from the least one): "
             "the least one of all Q-networks, their mean, or that of the first one.")
    critic_dropout: float = flag(
        0.0, group=_GROUP, least=0, most=0.9,
        text="Share of the Q-networks' units that are left out in training, others each time. "
             "Above 0, their layers are also normalised (DroQ).")
    shared_network: bool = flag(
        False, group=_GROUP, kept_by="weights",
        text="Let the policy read what the Q-networks' convolutions or core make of observations, "
             "by an MLP of its own; only the Q-networks' loss trains these (DrQ-v2). Otherwise the "
             "policy has a network of its own.")
    policy_delay: int = flag(
        1, group=_GROUP, learner_only=True, least=1,
        text="Optimizer steps of the Q-networks for each one of the policy.")
    compile_updates: bool = flag(
        True, group=_GROUP, learner_only=True,
        text="Compile all optimizer steps of an update with XLA, where it pays: for one learner on "
             "a CPU, networks without convolutions, and observations of fewer than 1,000 numbers. "
             "Large MLPs are not compiled: it is faster if two threads compute two networks at a "
             "time. They are compiled on one core, and with layer_norm, critic_dropout, xla or a "
             "flag of threads.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit together."""
        super().__post_init__()
        if "value" in self.distilled:
            raise ValueError(
                f"--distill={self.distill}: --algorithm={self.algorithm} learns values of actions "
                f"and no others, which a teacher lacks: use --distill=policy"
            )
        if self.replay:
            raise ValueError(
                f"--replay={self.replay}: --algorithm={self.algorithm} has a replay of its own, "
                f"of steps: leave it out, and set --replay_steps and --updates_per_step"
            )
        if "goal_critics" not in self.ignored and self.goal_critics > self.num_critics:
            raise ValueError(
                f"--goal_critics={self.goal_critics} is more than --num_critics="
                f"{self.num_critics}: give at most as many"
            )
        if self.optimizer_steps % self.policy_delay:
            raise ValueError(
                f"--policy_delay={self.policy_delay} does not divide the {self.optimizer_steps} "
                f"optimizer steps of an update (--updates_per_step x --batch_size x "
                f"--unroll_length): change one of them"
            )
        if self.optimizer_steps * self.minibatch_steps < self.batch_size * self.unroll_length:
            raise ValueError(
                f"--minibatch_steps={self.minibatch_steps}, {self.optimizer_steps} times an "
                f"update, has no room for the {self.batch_size * self.unroll_length} new steps of "
                f"--batch_size x --unroll_length: raise it, or --updates_per_step"
            )
        if self.replay_steps < self.minibatch_steps:
            raise ValueError(
                f"--replay_steps={self.replay_steps} is less than "
                f"--minibatch_steps={self.minibatch_steps}: raise it to at least that"
            )

    @property
    def compiles_updates(self) -> bool:
        """Whether XLA may compile all optimizer steps of an update."""
        return self.compile_updates and not self.computes_side_by_side

    @property
    def update_threads(self) -> UpdateThreads:
        """Two where XLA or two networks at a time need them.

        Nothing else runs in the thread of a compiled update, so a second one answers actors. Within
        an operation, two save time where products of matrices are so large that halves of them do.
        """
        if self.computes_side_by_side:
            return UpdateThreads(at_once=2, cores=2)
        if not self.compiles_updates:
            return UpdateThreads()
        within = min(2 if self._has_large_products() else 1, len(os.sched_getaffinity(0)))
        return UpdateThreads(within, at_once=2, cores=within)

    @property
    def computes_side_by_side(self) -> bool:
        """Whether products are large, and nearly all that there is to compute.

        XLA computes one network after the other, but what is between the products faster.
        """
        normalised = self.layer_norm or self.critic_dropout > 0
        plain = self.agent_name in ("auto", "MLPAgent") and not normalised
        given = self.xla or self.intra_op_threads or self.inter_op_threads
        several_cores = len(os.sched_getaffinity(0)) > 1
        return plain and not given and several_cores and self._has_large_products()

    def _has_large_products(self) -> bool:
        products = [a * b for a, b in itertools.pairwise(whole_numbers(self.mlp_sizes))]
        return self.minibatch_steps * max(products, default=0) >= _WORTH_TWO_THREADS

    @property
    def optimizer_steps(self) -> int:
        """The optimizer steps of one update."""
        return max(1, round(self.updates_per_step * self.batch_size * self.unroll_length))


@dataclasses.dataclass(frozen=True)
class SACSettings(QPolicySettings):
    """The settings of a process of SAC."""

    box_policy: str = default(Config, "box_policy", "tanh")
    box_deviation: str = default(Config, "box_deviation", "learnt")
    # fmt: off
    temperature: float = flag(
        1.0, group=_SAC, learner_only=True, least=1e-6,
        text="Weight of the entropy: at the start, or always with fixed_temperature.")
    fixed_temperature: bool = flag(
        False, group=_SAC, learner_only=True,
        text="Keep the temperature. Unset: it is trained until the policy has target_entropy.")
    temperature_rate: float = flag(
        0.001, group=_SAC, learner_only=True, least=0, needs=_TRAINED,
        text="Learning rate of the temperature at the start of the run.")
    target_entropy: float = flag(
        -1.0, group=_SAC, learner_only=True, needs=_TRAINED & _OF_NUMBERS,
        text="Entropy of the policy that the temperature is trained for, in nats for each number "
             "of an action; 0 is that of a uniform distribution over half of their range.")
    discrete_sac: bool = flag(
        False, group=_SAC,
        text="Choose a Discrete or MultiDiscrete action: each Q-network returns the values of all "
             "choices, and expectations are sums over these instead of samples.")
    target_entropy_share: float = flag(
        0.3, group=_SAC, learner_only=True, least=0, most=1,
        needs=_TRAINED & with_flag("discrete_sac"),
        text="With discrete_sac: entropy of the policy that the temperature is trained for, as a "
             "share of the largest one, the logarithm of the number of allowed choices.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse what Q-networks of choices lack."""
        super().__post_init__()
        if self.discrete_sac and self.critic_dropout:
            raise ValueError(
                f"--critic_dropout={self.critic_dropout:g} with --discrete_sac: only Q-networks of "
                f"numbers leave units out: leave one of them out"
            )


@dataclasses.dataclass(frozen=True)
class TD3Settings(QPolicySettings):
    """The settings of a process of TD3."""

    ignored: ClassVar[frozenset[str]] = QPolicySettings.ignored | {"box_deviation"}

    box_policy: str = default(Config, "box_policy", "noisy")
    critic_rate: float = default(QPolicySettings, "critic_rate", 0.0003)
    random_steps: int = default(QPolicySettings, "random_steps", 25_000)
    policy_value: str = default(QPolicySettings, "policy_value", "first")
    policy_delay: int = default(QPolicySettings, "policy_delay", 2)
    # fmt: off
    action_noise: float = flag(
        0.1, group=_TD3, least=0,
        text="Deviation of the noise in the actions of training, where bounds are -1 and 1.")
    smoothing: float = flag(
        0.2, group=_TD3, learner_only=True, least=0,
        text="Deviation of the noise in the actions whose values are goals.")
    smoothing_limit: float = flag(
        0.5, group=_TD3, learner_only=True, least=0, only_with=with_flag("smoothing"),
        text="Largest number of that noise.")
    cloning: float = flag(
        0.0, group=_TD3, learner_only=True, least=0,
        text="Weight of the value, on the scale of its mean size, beside the squared distance of "
             "the policy's action from the one that was played (TD3+BC, which has 2.5). 0: the "
             "policy learns from the value alone.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse policies with more than an action and noise."""
        super().__post_init__()
        if self.box_policy != "noisy":
            raise ValueError(
                f"--box_policy={self.box_policy}: the policy of TD3 is an action and noise of "
                f"--action_noise: leave it out"
            )
        if self.distils and not self.action_noise:
            raise ValueError(
                "--action_noise=0 with a teacher: policies without noise have no divergence: give "
                "--action_noise above 0, or --teacher_cost=0"
            )


@dataclasses.dataclass(frozen=True)
class MPOSettings(QPolicySettings):
    """The settings of a process of MPO, whose defaults are those of Acme."""

    box_policy: str = default(Config, "box_policy", "normal")
    box_deviation: str = default(Config, "box_deviation", "learnt")
    learning_rate: float = default(Config, "learning_rate", 0.0001)
    critic_rate: float = default(QPolicySettings, "critic_rate", 0.0001)
    target_share: float = default(QPolicySettings, "target_share", 1.0)
    target_period: int = default(QPolicySettings, "target_period", 100)
    updates_per_step: float = default(QPolicySettings, "updates_per_step", 0.125)
    random_steps: int = default(QPolicySettings, "random_steps", 1000)
    num_critics: int = default(QPolicySettings, "num_critics", 1)
    goal_critics: int = default(QPolicySettings, "goal_critics", 1)
    # fmt: off
    action_samples: int = flag(
        20, group=_MPO, learner_only=True, least=2,
        text="Actions drawn for each observation: for the mean value of a goal, and to weigh them "
             "by their values.")
    temperature: float = flag(
        10.0, group=_MPO, learner_only=True, least=1e-6,
        text="Initial temperature of the softmax over the actions' values that gives their "
             "weights.")
    target_weight_kl: float = flag(
        0.1, group=_MPO, learner_only=True, least=1e-9,
        text="Divergence of these weights from equal ones, in nats, at which the temperature "
             "holds them. The smaller it is, the more evenly all actions are learnt from.")
    target_mean_kl: float = flag(
        2.5e-3, group=_MPO, learner_only=True, least=1e-9,
        text="Limit of the divergence of the slow copy from a policy with the new mean, in nats, "
             "for each number of an action.")
    target_deviation_kl: float = flag(
        1e-6, group=_MPO, learner_only=True, least=1e-9,
        text="The same with the new deviation instead.")
    target_bounds_kl: float = flag(
        1e-3, group=_MPO, learner_only=True, least=0,
        text="Divergence from equal weights of those by which actions beyond the bounds count "
             "less, the further beyond. 0: they are not told apart.")
    dual_rate: float = flag(
        0.01, group=_MPO, learner_only=True, least=0,
        text="Learning rate of the temperature and of the divergences' costs at the start of the "
             "run.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse policies without a mean and a deviation of each number."""
        super().__post_init__()
        if self.box_policy != "normal":
            raise ValueError(
                f"--box_policy={self.box_policy}: the policy of MPO is a normal distribution: use "
                f"--box_policy=normal"
            )


@dataclasses.dataclass(frozen=True)
class IQLSettings(QPolicySettings):
    """The settings of a process of IQL."""

    ignored: ClassVar[frozenset[str]] = QPolicySettings.ignored | {"goal_critics"}

    box_policy: str = default(Config, "box_policy", "normal")
    critic_rate: float = default(QPolicySettings, "critic_rate", 0.0003)
    # fmt: off
    expectile: float = flag(
        0.7, group=_IQL, learner_only=True, least=0.5, most=1,
        text="Expectile of the played actions' values that a state's value is: 0.5 is their mean; "
             "the nearer to 1, the nearer it is to the best one, and the more luck counts as "
             "skill.")
    inverse_temperature: float = flag(
        3.0, group=_IQL, learner_only=True, least=0,
        text="Factor of an action's advantage in the logarithm of its weight. 0: all weights are "
             "1, which is behaviour cloning.")
    largest_weight: float = flag(
        100.0, group=_IQL, infinite=True, learner_only=True, least=1,
        only_with=with_flag("inverse_temperature"),
        text="Largest weight of an action. inf: no limit.")
    # fmt: on
