"""The flags of --algorithm=tests.algorithms.student."""

import dataclasses

from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of a student."""

    # fmt: off
    agent_name: str = default(Config, "agent_name", "MLPLSTMAgent")
    learning_rate: float = default(Config, "learning_rate", 0.002)
    loss_reduction: str = default(Config, "loss_reduction", "mean")
    teacher: str = flag(
        "", group="Student",
        text="Folder of the run that trained the teacher, or of one checkpoint.")
    teacher_cost: float = flag(
        1.0, group="Student", least=0,
        text="Weight of the divergence from the teacher's policy in the loss, at the start.")
    teacher_frames: float = flag(
        20000, group="Student", least=1,
        text="Environment frames over which teacher_cost falls to 0.")
    burn_in: int = flag(
        10, group="Student", least=0,
        text="Entries before an unroll's steps that the teacher only reads, to fill its memory.")
    # fmt: on
