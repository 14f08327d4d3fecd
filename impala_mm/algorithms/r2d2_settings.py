"""The flags of --algorithm=r2d2."""

import dataclasses
from typing import ClassVar

from impala_mm.algorithms import q_learning_settings as family
from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(family.Settings):
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
    n_steps: int = default(family.Settings, "n_steps", 5)
    duelling: bool = default(family.Settings, "duelling", True)
    value_rescaling: float = default(family.Settings, "value_rescaling", 0.001)
    target_period: int = default(family.Settings, "target_period", 100)
    target_share: float = default(family.Settings, "target_share", 1.0)

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
