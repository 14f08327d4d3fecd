"""The flags of --algorithm=tests.algorithms.recurrent_q."""

import dataclasses

from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of recurrent Q-learning."""

    # fmt: off
    agent_name: str = default(Config, "agent_name", "MLPLSTMAgent")
    learning_rate: float = default(Config, "learning_rate", 0.002)
    loss_reduction: str = default(Config, "loss_reduction", "mean")
    burn_in: int = flag(
        4, group="Recurrent Q", least=0,
        text="Entries before an unroll's steps that the LSTM only reads, from the state that the "
             "actor recorded.")
    n_steps: int = flag(
        5, group="Recurrent Q", least=1,
        text="Rewards in a target before it uses the target network's value.")
    target_period: int = flag(
        50, group="Recurrent Q", least=1,
        text="Updates between two copies of the network to the target network.")
    random_share: float = flag(
        0.4, group="Recurrent Q", least=0, most=1,
        text="Share of random actions in environment 0; the last environment has its 8th power.")
    replay_capacity: int = flag(
        2000, group="Recurrent Q", least=1,
        text="Unrolls that each learner keeps for replay.")
    replayed: int = flag(
        24, group="Recurrent Q", least=0,
        text="Replayed unrolls in a batch, besides its batch_size new ones.")
    priority_power: float = flag(
        0.9, group="Recurrent Q", least=0,
        text="Power of the priorities by which unrolls are drawn; 0: all alike.")
    weight_power: float = flag(
        0.6, group="Recurrent Q", least=0,
        text="Power of the importance weights that correct for it; 0: no correction.")
    # fmt: on
