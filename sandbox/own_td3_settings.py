"""The flags of sandbox/own_td3.py, an example of sandbox/own_algorithm.md."""

import dataclasses

from impala_mm.config import flags
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of TD3."""

    batch_size: int = flags.default(Config, "batch_size", 4)
    unroll_length: int = flags.default(Config, "unroll_length", 8)
    learning_rate: float = flags.default(Config, "learning_rate", 0.001)
    units: int = flags.flag(256, "Units of each hidden layer.", group="TD3", least=1)
    replay_steps: int = flags.flag(200_000, "Steps that each learner holds.", group="TD3", least=1)
    random_steps: int = flags.flag(
        2_000, "Steps of each learner's replay before its first update.", group="TD3", least=1
    )
    minibatch_steps: int = flags.flag(128, "Steps of a minibatch.", group="TD3", least=1)
    updates_per_step: float = flags.flag(
        0.5, "Critic updates for each step that a learner's actors play.", group="TD3", least=0
    )
    noise: float = flags.flag(0.1, "Deviation of the noise while exploring.", group="TD3", least=0)

    def __post_init__(self):
        """Refuse a batch that would not contain all new steps."""
        if self.minibatch_steps * self.updates_per_step < 1:
            raise ValueError(
                f"--updates_per_step={self.updates_per_step:g}: new steps would be in no "
                f"minibatch of {self.minibatch_steps}: give at least {1 / self.minibatch_steps:g}"
            )
