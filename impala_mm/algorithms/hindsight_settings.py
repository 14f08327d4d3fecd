"""The flags of hindsight (`features/hindsight.py`), which DQN, R2D2 and SAC share."""

import dataclasses

from impala_mm.config.flags import flag, with_flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of an algorithm that may learn in hindsight."""

    # fmt: off
    her_ratio: int = flag(
        0, group="Hindsight", least=0,
        text="Hindsight experience replay (HER), for environments with goals: how often a step is "
             "trained with a goal that the agent reached later in the episode, for each time with "
             "its own goal; usually 4. 0: off.")
    her_window: int = flag(
        50, group="Hindsight", least=1, only_with=with_flag("her_ratio"),
        text="Number of steps, from a step on and including it, from which its goals in hindsight "
             "are taken; fewer where the episode ends. An actor sends a step once it knows these.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse hindsight where an actor cannot hold back its unrolls."""
        if self.her_ratio and self.inference == "learner":
            raise ValueError(
                f"--her_ratio={self.her_ratio}: only an actor that chooses actions itself can give "
                f"its steps other goals: use --inference=actor"
            )
        if self.her_ratio and self.deterministic_run:
            raise ValueError(
                f"--her_ratio={self.her_ratio} with --deterministic_run: in each turn an actor "
                f"sends what it has played, and steps wait for later goals: leave one of them out"
            )
