"""The flags that DQN and R2D2 share, and their defaults for the flags of all algorithms."""

import dataclasses

from impala_mm.config import replay_mix
from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config

GROUP = "Q-learning"


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of an algorithm of `q_learning`."""

    # fmt: off
    batch_size: int = default(Config, "batch_size", 32)
    loss_reduction: str = default(Config, "loss_reduction", "mean")
    activation: str = default(Config, "activation", "relu")
    learning_rate_schedule: str = default(Config, "learning_rate_schedule", "constant")

    n_steps: int = flag(
        1, group=GROUP, least=1,
        text="Rewards in a target before it uses the target network's value. Fewer after a "
             "termination, and before a truncation, where the value of the episode's last "
             "observation follows.")
    double_q: bool = flag(
        True, group=GROUP, learner_only=True,
        text="Double Q-learning: the network chooses the action whose value the target network "
             "gives. Unset: the target network's largest value.")
    duelling: bool = flag(
        False, group=GROUP,
        text="Let the network compute the observation's value and the actions' advantages apart, "
             "of which the actions' values are the sum.")
    value_rescaling: float = flag(
        0.0, group=GROUP, learner_only=True, least=0, most=1,
        text="Learn h(value) = sign(value) (sqrt(|value| + 1) - 1) + value_rescaling x value "
             "instead of the value, for rewards of any size without clipping (R2D2: 0.001). 0: "
             "learn the value itself.")
    target_period: int = flag(
        1, group=GROUP, learner_only=True, least=1,
        text="Updates between two times that the target network follows the network.")
    target_share: float = flag(
        0.005, group=GROUP, learner_only=True, least=0, most=1,
        text="Share of the way to the network that the target network then goes. 1: it becomes a "
             "copy.")
    epsilon_schedule: str = flag(
        "decay", group=GROUP, choices=("ladder", "decay"),
        text="Share of random actions. decay: the same in all environments, and falling over the "
             "run. ladder: another one for each environment of the run, epsilon_base to the power "
             "of 1 to 8 (4.5 for a single one), for the whole run.")
    epsilon_base: float = flag(
        0.4, group=GROUP, least=0, most=1,
        text="Share of random actions in the first environment, with epsilon_schedule=ladder; the "
             "last one has its 8th power.")
    epsilon_start: float = flag(
        1.0, group=GROUP, learner_only=True, least=0, most=1,
        text="Share of random actions at the start, with epsilon_schedule=decay.")
    epsilon_end: float = flag(
        0.01, group=GROUP, learner_only=True, least=0, most=1,
        text="Share of random actions after epsilon_frames, with epsilon_schedule=decay.")
    epsilon_frames: float = flag(
        50_000, group=GROUP, learner_only=True, least=0,
        text="Environment frames of all learners over which the share of random actions falls in a "
             "line from epsilon_start to epsilon_end.")
    largest_error_share: float = flag(
        0.9, group=GROUP, learner_only=True, least=0, most=1,
        text="Share of an unroll's largest error in its priority; the rest is the mean error "
             "(R2D2's eta).")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse a replay that compares features, which a Q-network does not record."""
        if self.replay and replay_mix.parse(self.replay).needs_features:
            raise ValueError(
                f"--replay={self.replay}: a Q-network records no features, which attentive and "
                f"elite compare: use uniform or prioritised instead"
            )
