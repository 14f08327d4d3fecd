"""The flags of SAC, and its defaults for the shared ones."""

import dataclasses

from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    batch_size: int = default(Config, "batch_size", 4)
    unroll_length: int = default(Config, "unroll_length", 5)
    num_envs: int = default(Config, "num_envs", 4)
    learning_rate: float = default(Config, "learning_rate", 0.001)
    learning_rate_schedule: str = default(Config, "learning_rate_schedule", "constant")
    activation: str = default(Config, "activation", "relu")
    gradients_clipping: float = default(Config, "gradients_clipping", -1.0)

    critic_rate: float = flag(
        0.001, "Learning rate of the Q-networks at the start of the run.", group="SAC", least=0
    )
    temperature_rate: float = flag(
        0.001, "Learning rate of the temperature at the start of the run.", group="SAC", least=0
    )
    temperature: float = flag(0.2, "Initial weight of the entropy.", group="SAC", least=1e-6)
    target_share: float = flag(
        0.01, "Share of the Q-networks' change that their targets follow in one update.",
        group="SAC", least=0, most=1,
    )  # fmt: skip
    replay_unrolls: int = flag(
        20_000, "Newest unrolls that each learner replays.", group="SAC", least=1
    )
    replay_columns: int = flag(
        32, "Unrolls of one update, new and replayed ones together.", group="SAC", least=1
    )
    replay_updates: int = flag(
        10, "Updates for each batch of batch_size new unrolls.", group="SAC", least=1
    )

    def __post_init__(self):
        if self.replay_columns < self.batch_size:
            raise ValueError(
                f"--replay_columns={self.replay_columns} has no room for the new unrolls of "
                f"--batch_size={self.batch_size}"
            )
