"""The flags of --algorithm=dqn."""

import dataclasses

from impala_mm.algorithms import q_learning_settings as family
from impala_mm.config.flags import default
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(family.Settings):
    """The settings of a process of DQN."""

    unroll_length: int = default(Config, "unroll_length", 8)
    replay: str = default(Config, "replay", "queue:0.125,prioritised:0.875:20000")
    learning_rate: float = default(Config, "learning_rate", 0.0005)
    gradients_clipping: float = default(Config, "gradients_clipping", 10.0)
    huber_delta: float = default(Config, "huber_delta", 1.0)
