"""The phases of a student's run before its actors play: its data is collected, and it learns.

    evaluate     the teacher's mean return is measured             `teaching.begin`
    collect      it plays --teacher_steps, if there is no data     `begin`
    offline      --offline_updates updates from these games        `Learner`
    online       actors play, and the student learns from them

A checkpoint says how many offline updates were made, and the mean returns are among its variables;
complete games that were collected are in the run's folder. So a run that was killed goes on in the
phase in which it was. `setup` calls this after `teaching.begin`.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.algorithms import registry
from impala_mm.algorithms.agent import Agent
from impala_mm.algorithms.interface import Algorithm, entry_spec
from impala_mm.config.messages import UserMistake
from impala_mm.config.settings import Config
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.types import BadLevel
from impala_mm.learner import teaching
from impala_mm.learner.offline_source import OfflineSource, PhasedSource
from impala_mm.replay.data_set import About, BadData, unroll_spec
from impala_mm.replay.recorded_games import RecordedGames
from impala_mm.runtime import heartbeat
from impala_mm.runtime.log import Say


class Data(NamedTuple):
    """The data that a student needs, and where it lies."""

    about: About  # the student's own description
    folders: list[Path]  # those of --teacher_data; else one, of this learner's own games
    is_own: bool


def planned_updates(config: Config) -> int:
    """Return the number of updates from recorded games with which a run begins."""
    return getattr(config, "offline_updates", 0)


def why_unsuitable(config: Config, algorithm: Algorithm) -> str:
    """Return why the flags do not fit the algorithm, as a sentence; empty if they do."""
    if not planned_updates(config) or registry.optional(algorithm, "offline_update"):
        return ""
    return (
        f"--offline_updates={planned_updates(config)}: --algorithm={config.algorithm} has no "
        f"method offline_update (impala_mm/algorithms/interface.py explains it): give "
        f"--offline_updates=0, without which --mode=reincarnate has some"
    )


def begin(
    agent: Agent,
    config: Any,
    group: LearnerGroup,
    run: Path,
    left: int,
    source: PhasedSource,
    tools: teaching.PolicyTools,
    say: Say,
) -> None:
    """Collect what is missing, and let the source return recorded batches for `left` updates.

    `run` is the run's folder on this host. Raises teaching.UnfitTeacher or teaching.Stopped, on
    all learners alike.
    """
    if not left:
        return
    algorithm = agent.algorithm
    data = find(agent, config, run, group.rank, tools.describe_data)
    games: RecordedGames | None = None
    problem, stopped = "", False
    try:
        if data.is_own:
            _collect(agent, config, group, data, tools, say)
        unroll = algorithm.unroll
        games = RecordedGames(data.folders, data.about, unroll, say if not group.rank else _quiet)
    except (UserMistake, BadLevel) as error:
        flag = "" if data.is_own or not isinstance(error, BadData) else "--teacher_data: "
        problem = f"{flag}{error}"
    except teaching.Stopped:
        stopped = True
    teaching.agree(group, problem, stopped)
    assert games
    share = (0, 1) if data.is_own else (group.rank, group.size)
    seed = [config.seed, left, group.rank if data.is_own else 0]
    source.begin(OfflineSource(games, algorithm, config.batch_size, left, seed, share), left)
    if group.rank == 0:
        say(
            f"offline: {left:,} updates from {games.steps:,} recorded steps "
            f"({len(games):,} unrolls); actors play afterwards"
        )


def find(agent: Agent, config: Any, run: Path, rank: int, describe: Callable[..., About]) -> Data:
    """Return the data of a student: that of --teacher_data, or its own in the run's folder."""
    unroll = unroll_spec(entry_spec(agent.spec, ()), config.unroll_length)
    about = describe(agent.spec, unroll, config.level_name)
    folders = [Path(name.strip()) for name in config.teacher_data.split(",") if name.strip()]
    own = [run / "teacher_data" / f"learner-{rank}"]
    return Data(about, folders or own, not folders)


def _collect(
    agent: Agent,
    config: Any,
    group: LearnerGroup,
    data: Data,
    tools: teaching.PolicyTools,
    say: Say,
) -> None:
    """Let the teachers play what this learner's share of --teacher_steps lacks."""
    (folder,) = data.folders
    steps = 0
    with contextlib.suppress(BadData):  # nothing is there, or no game is complete
        steps = RecordedGames([folder], data.about, agent.algorithm.unroll, _quiet).steps
    missing = -(-config.teacher_steps // group.size) - steps
    if missing <= 0:
        return
    beat = heartbeat.of_learner().beat

    def meanwhile() -> None:
        beat()
        if tools.stopping():
            raise teaching.Stopped

    distillation = registry.optional(agent.algorithm, "distillation")
    about = data.about._replace(policy=config.teacher)
    seed = config.seed + 1_000 * group.rank
    tell = say if not group.rank else _quiet
    teachers, spec = distillation.teachers, agent.spec
    tools.collect(teachers, config, spec, folder, about, missing, seed, meanwhile, tell)


def _quiet(message: str) -> None:
    """Print nothing: rank 0 does."""
