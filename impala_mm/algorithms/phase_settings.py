"""The flags of the phases before a student plays, which `teacher_settings` inherits.

It stands apart from them because settings must not import TensorFlow.
"""

import dataclasses

from impala_mm.config.flags import flag
from impala_mm.config.settings import Config

_GROUP = "Teacher"


@dataclasses.dataclass(frozen=True)
class PhaseSettings(Config):
    """The flags of an algorithm that may learn from recorded games before it plays."""

    # fmt: off
    offline_updates: int = flag(
        0, group=_GROUP, learner_only=True, least=0,
        text="Updates from recorded games with which a run begins, before its actors play. The "
             "games are those of teacher_data; without it, the teacher plays them first. "
             "sandbox/teachers.md explains what is learned from them.")
    teacher_data: str = flag(
        "", group=_GROUP, learner_only=True,
        text="Folder of recorded games, as --mode=record writes them, for offline_updates; "
             "several, separated by commas. Every learner reads them, and each learns from its "
             "share.")
    teacher_steps: int = flag(
        50_000, group=_GROUP, learner_only=True, least=1,
        text="Steps that the teacher plays at the start of a run with offline_updates, unless "
             "teacher_data has recorded games; games that have begun are played to their ends. "
             "Several learners share them.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse flags that have no effect."""
        if self.teacher_data and not self.offline_updates:
            raise ValueError(
                f"--teacher_data={self.teacher_data} has no effect without --offline_updates: "
                f"give both, or leave it out"
            )
        teacher = getattr(self, "teacher", "")
        if self.offline_updates and not (self.teacher_data or teacher):
            raise ValueError(
                f"--offline_updates={self.offline_updates} needs recorded games: give "
                f"--teacher_data, or a --teacher who plays them"
            )
