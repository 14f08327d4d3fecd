"""The flags of --algorithm=ppo.

The defaults are the usual ones for simulated robots (arXiv 1707.06347 and its implementations):
2,048 steps per update, ten passes over them in minibatches of 64, small separate networks with
orthogonal initial weights, normalised observations and rewards.
"""

import dataclasses

from impala_mm.algorithms import policy_gradient_settings as family
from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(family.Settings):
    """The settings of a process of PPO."""

    unroll_length: int = default(Config, "unroll_length", 128)
    learning_rate: float = default(Config, "learning_rate", 0.0003)
    mlp_init_scale: float = default(Config, "mlp_init_scale", 2**0.5)
    epochs: int = default(family.Settings, "epochs", 10)
    minibatches: int = default(family.Settings, "minibatches", 32)
    # fmt: off
    clip: float = flag(
        0.2, group="PPO", least=0,
        text="Change of an action's probability, as a share of that under the policy that "
             "played, beyond which it earns nothing more: PPO's epsilon.")
    # fmt: on
