"""The flags of --algorithm=vmpo.

The rest of the defaults is PPO's: 2,048 steps per update, ten passes in minibatches of 64 steps.
"""

import dataclasses
import math

from impala_mm.algorithms import policy_gradient_settings as family
from impala_mm.config.flags import default, flag


@dataclasses.dataclass(frozen=True)
class Settings(family.EpochSettings):
    """The settings of a process of V-MPO."""

    target_kl_mu_pi: float = default(family.Settings, "target_kl_mu_pi", 0.01)
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
