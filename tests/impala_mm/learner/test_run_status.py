"""What follows from the games of a run."""

import math
from types import SimpleNamespace

from impala_mm.algorithms.feature import Features
from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.features.guide import Guidance
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.episodes import ReportedEpisodes, to_rows
from impala_mm.environments.types import Episode
from impala_mm.learner.learner import RunLimits
from impala_mm.learner.run_status import RunStatus
from impala_mm.records.metrics import Meter


def test_games_in_which_a_teacher_acts_do_not_count_as_those_of_the_policy():
    """CartPole ended at its threshold in the hands of its teacher; the policy alone had 31."""
    guidance, algorithm = Guidance(TeacherSettings(teacher="x", guide_steps=9)), Algorithm()
    algorithm.features = Features([guidance])
    learner = SimpleNamespace(
        **{"config": Config(), "group": SimpleNamespace(size=1, rank=0), "server": None},
        **{"meter": Meter(), "limits": RunLimits(Config(), 475.0), "algorithm": algorithm},
    )
    status = RunStatus(learner, {"x": SimpleNamespace(scores=None)}, print)

    def play(games: int) -> None:
        rows = to_rows([Episode(0, True, 500.0, 500)] * games)
        learner.meter.add_episodes(ReportedEpisodes("x", 0, 0, rows, environments=1))

    play(100)
    returns = status.mean_returns()
    assert math.isnan(status.mean_return), "of no checkpoint"
    assert not learner.limits.why_reached(0.0, returns.of_all, 0)
    assert returns.least_exploring == 500.0
    guidance.share.assign(0.0)
    play(99)
    assert math.isnan(status.mean_returns().of_all), "the teacher's games do not count any more"
    play(100)
    assert status.mean_returns().of_all == status.mean_return == 500.0
    assert learner.limits.why_reached(0.0, 500.0, 0)
