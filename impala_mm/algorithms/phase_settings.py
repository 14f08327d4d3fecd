"""The flags of the phases before a student plays, which `teacher_settings` inherits.

It stands apart from them because settings must not import TensorFlow.
"""

import dataclasses

from impala_mm.config.errors import UserMistake
from impala_mm.config.flags import flag, with_flag, without_flag
from impala_mm.config.settings import Config

_GROUP = "Teacher"
RECORDED_GAMES = with_flag("offline_updates") | with_flag("teacher_data_share")


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
        "", group=_GROUP, learner_only=True, needs=RECORDED_GAMES,
        text="Folder of recorded games, as --mode=record writes them, for offline_updates and "
             "teacher_data_share; several, separated by commas. Every learner reads them, and each "
             "learns from its share.")
    teacher_data_share: float = flag(
        0.0, group=_GROUP, learner_only=True, least=0, most=0.99,
        text="Share of recorded games in each update while actors play, for DQN, R2D2 and SAC: "
             "unrolls, or steps of SAC, beside those of batch_size. They are never replaced, and "
             "are drawn uniformly. 0: none.")
    teacher_steps: int = flag(
        50_000, group=_GROUP, learner_only=True, least=1,
        only_with=RECORDED_GAMES & with_flag("teacher") & without_flag("teacher_data"),
        text="Steps that the teacher plays at the start of a run with offline_updates or "
             "teacher_data_share, unless teacher_data has recorded games; games that have begun "
             "are played to their ends. Several learners share them.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse flags that do not fit together."""
        share = f"--teacher_data_share={self.teacher_data_share:g}"
        if self.teacher_data_share and not self.learns_from_any_policy:
            raise ValueError(
                f"{share}: --algorithm={self.algorithm} must know how likely the policy that "
                f"played was to act so, which recorded games do not say: use --offline_updates, or "
                f"--algorithm=dqn, r2d2 or sac"
            )
        if self.uses_recorded_games and (ratio := getattr(self, "her_ratio", 0)):
            raise ValueError(
                f"--her_ratio={ratio}: recorded games have no goals that were reached later: leave "
                f"it out, or train without --offline_updates and --teacher_data_share"
            )
        teacher = getattr(self, "teacher", "")
        if self.uses_recorded_games and not (self.teacher_data or teacher):
            asked = f"--offline_updates={self.offline_updates}" if self.offline_updates else share
            raise ValueError(
                f"{asked} needs recorded games: give --teacher_data, or a --teacher who plays them"
            )

    @property
    def uses_recorded_games(self) -> bool:
        """Whether the run needs recorded games."""
        return bool(self.offline_updates or self.teacher_data_share)


def columns_beside(columns: int, share: float) -> int:
    """Return how many columns beside `columns` are a share of all; 1 stands for all of them.

    Raises UserMistake if the nearest share that whole columns make differs by over a quarter.
    """
    if share == 1:
        return columns
    below = int(columns * share / (1 - share))
    beside = min(max(below, 1), below + 1, key=lambda n: abs(n / (columns + n) - share))
    if abs((nearest := beside / (columns + beside)) - share) > share / 4:
        raise UserMistake(
            f"--teacher_data_share={share:g}: beside the {columns} columns of an update, the "
            f"nearest share that whole columns make is {nearest:.4g}: give that, or a larger "
            f"--batch_size (for SAC: --minibatch_steps)"
        )
    return beside


def share_beside(columns: int, share: float) -> float:
    """Return the share that the columns of `columns_beside` make."""
    beside = columns_beside(columns, share)
    return beside / (columns + beside)
