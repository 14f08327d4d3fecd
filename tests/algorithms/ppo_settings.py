"""The flags of PPO, and its defaults for the shared ones."""

import dataclasses

from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    batch_size: int = default(Config, "batch_size", 16)
    unroll_length: int = default(Config, "unroll_length", 32)
    num_envs: int = default(Config, "num_envs", 8)
    learning_rate: float = default(Config, "learning_rate", 0.001)
    entropy_cost: float = default(Config, "entropy_cost", 0.0)
    gradients_clipping: float = default(Config, "gradients_clipping", 0.5)
    separate_networks: bool = default(Config, "separate_networks", True)

    epochs: int = flag(10, "Passes over each batch.", group="PPO", least=1)
    minibatches: int = flag(
        4, "Optimizer steps of one pass, which divide batch_size among them.", group="PPO", least=1
    )
    clip: float = flag(
        0.2, "Change of an action's probability ratio from 1 beyond which it is clipped.",
        group="PPO", least=0,
    )  # fmt: skip
    target_kl: float = flag(
        0.05, "KL divergence from the policy that played, in nats, that ends an update.",
        group="PPO", least=0,
    )  # fmt: skip
    gae_lambda: float = flag(
        0.95, "Lambda of the generalised advantages.", group="PPO", least=0, most=1
    )

    def __post_init__(self):
        if self.batch_size % self.minibatches:
            raise ValueError(
                f"--minibatches={self.minibatches} does not divide --batch_size={self.batch_size}"
            )
