"""The phases of a student's run before its actors play: its data is collected, and it learns.

    evaluate     the teacher's mean return is measured             `teaching.begin`
    collect      it plays --teacher_steps, if there is no data     `begin`
    offline      --offline_updates updates from these games        `Learner`
    online       actors play, and the student learns from them, and perhaps from these games

A checkpoint says how many offline updates were made, and the mean returns are among its variables;
complete games that were collected are in the run's folder. So a run that was killed continues in
the phase in which it was. `setup` calls this after `teaching.begin`.
"""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.algorithms import feature_settings
from impala_mm.algorithms.agent import Agent
from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.interface import Algorithm, defines, entry_spec
from impala_mm.config.settings import Config
from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.distributed.group import LearnerGroup
from impala_mm.learner import teaching
from impala_mm.learner.batch_source import BatchSource
from impala_mm.learner.offline_source import (
    OfflineSource,
    PhasedSource,
    all_unrolls,
    entries_before,
)
from impala_mm.learner.own_source import OwnSource
from impala_mm.replay.data_set import About, BadData, unroll_spec
from impala_mm.replay.recorded_games import RecordedGames
from impala_mm.runtime import devices, heartbeat
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
    if not planned_updates(config) or defines(algorithm.offline_update):
        return ""
    return (
        f"--offline_updates={planned_updates(config)}: --algorithm={config.algorithm} has no "
        f"method offline_update (impala_mm/algorithms/interface.py explains it): give "
        f"--offline_updates=0, without which --mode=reincarnate has some"
    )


class Student(NamedTuple):
    """The learner of recorded games, and what it is given for them."""

    agent: Agent
    config: Any
    group: LearnerGroup
    run: Path  # the run's folder on this host
    tools: teaching.PolicyTools
    say: Say


def begin(student: Student, source: PhasedSource, left: int, updates: int) -> None:
    """Collect what is missing, and let the source return recorded batches for `left` updates.

    With --teacher_data_share, later batches have recorded columns. `updates` were made before.
    Raises teaching.UnfitTeacher or teaching.Stopped, on all learners alike.
    """
    agent, config, group, run, tools, say = student
    if not (left or config.teacher_data_share):
        return
    data = find(agent, config, run, group.rank, tools.describe_data)
    beat = heartbeat.of_learner().beat

    def meanwhile() -> None:
        beat()
        if tools.stopping():
            raise teaching.Stopped

    with teaching.agreeing(group):
        if data.is_own:
            _collect(agent, config, group, data, tools, meanwhile, say)
        try:
            games = read(agent, data, say if not group.rank else _quiet, meanwhile)
        except BadData as error:
            raise error if data.is_own else BadData(f"--teacher_data: {error}") from None
        offline, beside = _make_sources(
            agent.algorithm, config, group, games, data.is_own, left, updates, meanwhile
        )
    source.begin(offline, left, beside)
    if group.rank:
        return
    read_of = f"{games.steps:,} recorded steps ({len(games):,} unrolls)"
    if left:
        say(f"offline: {left:,} updates from {read_of}; actors play afterwards")
    if config.teacher_data_share:
        share = share_beside(agent.algorithm, config)
        say(f"online: {share:.1%} of each update is from {read_of}")


def share_beside(algorithm: Algorithm, config: Any) -> float:
    """Return the share of recorded games in later updates, which have whole columns.

    Raises UserMistake if that differs much from --teacher_data_share.
    """
    has_own = defines(algorithm.recorded_source)
    columns = algorithm.minibatch_columns if has_own else config.batch_size
    share = config.teacher_data_share
    return feature_settings.share_beside(columns, share) if columns else share


def read(
    agent: Agent, data: Data, say: Say, meanwhile: Callable[[], None] = lambda: None
) -> RecordedGames:
    """Return the games of a student's data, as it cuts them; raise BadData if they do not fit.

    `meanwhile` is called for each file.
    """
    earlier = entries_before(agent.algorithm, agent.spec.frame_stack)
    unroll = agent.algorithm.unroll
    check = functools.partial(UnrollCheck, actions=agent.spec.actions)
    return RecordedGames(data.folders, data.about, unroll, say, earlier, meanwhile, check)


def _make_sources(
    algorithm: Algorithm,
    config: Any,
    group: LearnerGroup,
    games: RecordedGames,
    is_own: bool,
    left: int,
    updates: int,
    meanwhile: Callable[[], None],
) -> tuple[BatchSource | None, BatchSource | None]:
    """Return the source of `left` batches, and that of columns beside others; None if not used.

    They draw anew at each start, of which the number of `updates` differs. `meanwhile` is called
    again and again. Raises UserMistake if --teacher_data_share makes no whole columns, or what is
    held does not fit in memory.
    """
    mine = (0, 1) if is_own else (group.rank, group.size)
    draws_itself = defines(algorithm.recorded_source)
    held = all_unrolls(games, algorithm, mine, meanwhile) if draws_itself else None

    def make(share: float, count: int | None) -> BatchSource:
        # Of shared games all learners have the same order, and each takes its share.
        rank = group.rank if is_own or draws_itself else 0
        seed = [config.seed, updates, rank] + [1] * (count is None)
        if held is None:
            columns = feature_settings.columns_beside(config.batch_size, share)
            return OfflineSource(games, algorithm, columns, count, seed, mine)
        drawn = algorithm.recorded_source(held, share, seed)
        return OwnSource(lambda _: drawn, drawn, algorithm.unroll, devices.training_device())

    beside = config.teacher_data_share
    return make(1.0, left) if left else None, make(beside, None) if beside else None


def find(agent: Agent, config: Any, run: Path, rank: int, describe: Callable[..., About]) -> Data:
    """Return the data of a student: that of --teacher_data, or its own in the run's folder."""
    unroll = unroll_spec(entry_spec(agent.spec, ()), config.unroll_length)
    about = describe(agent.spec, unroll, config)
    folders = [Path(name.strip()) for name in config.teacher_data.split(",") if name.strip()]
    own = [run / "teacher_data" / f"learner-{rank}"]
    return Data(about, folders or own, not folders)


def _collect(
    agent: Agent,
    config: Any,
    group: LearnerGroup,
    data: Data,
    tools: teaching.PolicyTools,
    meanwhile: Callable[[], None],
    say: Say,
) -> None:
    """Let the teachers play what this learner's share of --teacher_steps lacks."""
    steps = 0
    with contextlib.suppress(BadData):  # nothing is there, or no game is complete
        steps = read(agent, data, _quiet, meanwhile).steps
    missing = -(-config.teacher_steps // group.size) - steps
    if missing <= 0:
        return
    distillation, spec = (
        agent.algorithm.features.get(Distillation),
        agent.spec,
    )
    # With --teacher_cost=0 the teacher only plays.
    teachers = distillation.teachers if distillation else ()
    teachers = teachers or tools.load_teachers(config, spec)
    about = data.about._replace(policy=config.teacher)
    tell, (folder,) = (say if not group.rank else _quiet), data.folders
    tools.collect(teachers, config, spec, folder, about, missing, group.rank, meanwhile, tell)


def _quiet(message: str) -> None:
    """Print nothing: rank 0 does."""
