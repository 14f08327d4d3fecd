"""The flags of sandbox/own_algorithm.py, the example of sandbox/own_algorithm.md."""

import dataclasses
from typing import ClassVar

from impala_mm.config import flags
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of PPO."""

    rounds: ClassVar[bool] = True  # as the algorithm has; actors are counted by it
    # Other defaults for flags that all algorithms have.
    batch_size: int = flags.default(Config, "batch_size", 32)
    unroll_length: int = flags.default(Config, "unroll_length", 32)
    loss_reduction: str = flags.default(Config, "loss_reduction", "mean")
    gradients_clipping: float = flags.default(Config, "gradients_clipping", 0.5)
    normalize_rewards: bool = flags.default(Config, "normalize_rewards", True)
    # Flags of its own.
    epochs: int = flags.flag(4, "Passes over each batch.", group="PPO", least=1)
    minibatches: int = flags.flag(4, "Parts of a batch, a step for each.", group="PPO", least=1)
    clip_ratio: float = flags.flag(
        0.2, "Largest change of an action's probability that is rewarded.", group="PPO", least=0
    )
    gae_lambda: float = flags.flag(0.95, "Lambda of the advantages.", group="PPO", least=0, most=1)
    largest_kl: float = flags.flag(
        0.03, "Divergence from the policy that played after which an update ends.", group="PPO"
    )

    def __post_init__(self):
        """Refuse numbers that do not fit together."""
        if self.batch_size % self.minibatches:
            raise ValueError(
                f"--minibatches={self.minibatches} does not divide --batch_size={self.batch_size}"
            )
