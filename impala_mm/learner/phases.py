"""The phases of a student's run before its actors play: its teachers are measured, and it learns.

    evaluate     the teachers' mean returns are measured, once     `Phases.begin_teachers`
    collect      they play --teacher_steps, if there is no data    `Phases.begin_data`
    offline      --offline_updates updates from these games        `Learner`
    online       actors play, and the student learns from them, and perhaps from these games

A checkpoint says how many offline updates were made, and the mean returns are among its variables;
complete games that were collected are in the run's folder. So a run that was killed continues in
the phase in which it was. `setup` calls this when a learner's variables are those of its
checkpoint. Every learner loads the teachers, and rank 0 measures.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_mm.algorithms import feature_settings
from impala_mm.algorithms.agent import Agent
from impala_mm.algorithms.features.teacher import UNKNOWN, Distillation, Returns
from impala_mm.algorithms.interface import Algorithm, PolicyLoader, defines, entry_spec
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.make import level_names
from impala_mm.environments.types import BadLevel, EnvironmentSpec, MeasuredScores
from impala_mm.learner.sources.batch_source import BatchSource
from impala_mm.learner.sources.own import OwnSource
from impala_mm.learner.sources.recorded import (
    OfflineSource,
    PhasedSource,
    all_unrolls,
    entries_before,
)
from impala_mm.replay.data_set import About, BadData, unroll_spec
from impala_mm.replay.recorded_games import RecordedGames
from impala_mm.runtime import heartbeat, starter
from impala_mm.runtime.log import Say
from impala_mm.runtime.timing import Interval, format_duration

_LINE_SECONDS = 3.0  # between two lines of progress


class UnfitTeacher(UserMistake):
    """A teacher, or its data, that a learner cannot use; the message says why."""


class Stopped(Exception):
    """The user stops the run before its first update; all learners raise it together."""


class PolicyTools(NamedTuple):
    """The functions of packages that this one must not import."""

    load_policy: PolicyLoader  # loads the policies of other runs that an algorithm's flags name
    # (settings, spec) -> the teachers, each with `notes` for the user besides what
    # `algorithms.feature.Teacher` has
    load_teachers: Callable[[Any, EnvironmentSpec], Sequence[Any]]
    # (teacher or None, settings, spec, meanwhile) -> its mean return; None plays random actions.
    # `meanwhile` gets the number of games that have ended, that of all, and their steps.
    mean_return: Callable[[Any, Any, EnvironmentSpec, Callable[[int, int, int], None]], float]
    # (teachers, settings, spec, folder, description, steps, seed, meanwhile, say): adds to data
    collect: Callable[..., None] = lambda *_: None
    # (spec, layout of unrolls, settings) -> the description of recorded data, `data_set.About`
    describe_data: Callable[..., Any] = lambda *_: None
    stopping: Callable[[], bool] = lambda: False  # whether the user wants the run to end


class Data(NamedTuple):
    """The data that a student needs, and where it lies."""

    about: About  # the student's own description
    folders: list[Path]  # those of --teacher_data; else one, of this learner's own games
    is_own: bool


class Phases:
    """A learner before its actors play: it learns from teachers or from recorded games, if any."""

    def __init__(
        self,
        agent: Agent,
        config: Any,
        group: LearnerGroup,
        run: Path,
        tools: PolicyTools,
        say: Say,
    ):
        """Begin in the run's folder `run` on this host; rank 0 says what happens."""
        self._agent, self._config, self._group, self._tools = agent, config, group, tools
        self._algorithm, self._spec, self._run = agent.algorithm, agent.spec, run
        self._say: Say = say if group.rank == 0 else _quiet
        self._beat, self._line = heartbeat.of_learner().beat, Interval(_LINE_SECONDS)
        self._teachers: Sequence[Any] = ()  # once they are loaded

    def begin_teachers(self, is_new: bool = True) -> dict[str, float]:
        """Give the algorithm its teachers; return their mean returns, by key, if they are new.

        They are measured if the teachers' cost follows them and, with --mode=reincarnate, for a new
        run of any method. Raises UnfitTeacher, on all learners alike.
        """
        config, group = self._config, self._group
        distillation: Distillation | None = self._algorithm.features.get(Distillation)
        evaluates = config.mode == "reincarnate"
        if distillation is None and not (evaluates and is_new):
            return {}
        if distillation and distillation.is_over():
            self._say(
                f"the cost of --teacher={config.teacher} has fallen to 0: no learner reads it again"
            )
            return {}
        recorded = returns = (
            distillation.returns()
            if distillation
            else Returns(config.teacher_return, config.random_return)
        )
        is_needed = distillation is not None and config.follows_score
        with agreeing(group):
            self._teachers = self._tools.load_teachers(config, self._spec)
            for note in (note for teacher in self._teachers for note in teacher.notes):
                self._say(note)
            if (is_needed or evaluates) and group.rank == 0:
                if UNKNOWN in recorded:
                    returns = self._measure(recorded)
                if is_needed:
                    _check(returns, config.teacher)
        returns = group.gather(returns, "teachers")[0]
        if distillation:
            distillation.begin(self._teachers, self._spec.frame_stack)
            distillation.set_returns(returns)
        if returns == recorded:
            return {}
        return {"teacher_return": returns.teacher, "random_return": returns.random}

    def _measure(self, recorded: Returns) -> Returns:
        """Return the mean returns, of which those that are not known are measured."""
        (teacher, random), began, config = recorded, time.monotonic(), self._config
        if teacher == UNKNOWN:
            self._say(
                f"--teacher={config.teacher} plays {config.teacher_episodes} games, for its mean "
                f"return"
            )
            returns = [self._mean_return(one, f"the teacher {one.name}") for one in self._teachers]
            teacher = float(np.mean(returns))
        if random == UNKNOWN:
            one = len(level_names(config.level_name)) == 1
            published = self._spec.scores if one else None
            if isinstance(published, MeasuredScores):
                random = published.low
            else:
                random = self._mean_return(None, "a random policy")
        self._say(
            f"mean return of the teacher {teacher:.2f}, of a random policy {random:.2f} "
            f"({time.monotonic() - began:.1f} s)"
        )
        return Returns(teacher, random)

    def _mean_return(self, teacher: Any, player: str) -> float:
        """Return the mean return of a teacher, or of random actions; print lines of progress."""
        began = time.monotonic()

        def meanwhile(played: int, games: int, steps: int) -> None:
            self._go_on()
            if not self._line.due(now := time.monotonic()):
                return
            left = (now - began) / played * (games - played) if played else 0.0
            eta = f" | ETA {format_duration(left)}" if played else ""
            self._say(f"evaluate: {player}, {played} of {games} games, {steps:,} steps{eta}")

        return self._tools.mean_return(teacher, self._config, self._spec, meanwhile)

    def _go_on(self) -> None:
        """Send the heartbeat; raise Stopped if the user wants the run to end."""
        self._beat()
        if self._tools.stopping():
            raise Stopped

    def begin_data(self, source: PhasedSource, left: int, updates: int) -> None:
        """Collect what is missing, and let the source return recorded batches for `left` updates.

        With --teacher_data_share, later batches have recorded columns. `updates` were made before.
        Raises UnfitTeacher or Stopped, on all learners alike.
        """
        config = self._config
        if not (left or config.teacher_data_share):
            return
        data = find(self._agent, config, self._run, self._group.rank, self._tools.describe_data)
        with agreeing(self._group):
            if data.is_own:
                self._collect(data)
            try:
                games = read(self._agent, data, self._say, self._go_on)
            except BadData as error:
                raise error if data.is_own else BadData(f"--teacher_data: {error}") from None
            offline, beside = self._make_sources(games, data.is_own, left, updates)
        source.begin(offline, left, beside)
        read_of = f"{games.steps:,} recorded steps ({len(games):,} unrolls)"
        if left:
            follows = "the run ends" if starter.ends_offline(config) else "actors play"
            self._say(f"offline: {left:,} updates from {read_of}; {follows} afterwards")
        if config.teacher_data_share:
            share = share_beside(self._algorithm, config)
            self._say(f"online: {share:.1%} of each update is from {read_of}")

    def _make_sources(
        self, games: RecordedGames, is_own: bool, left: int, updates: int
    ) -> tuple[BatchSource | None, BatchSource | None]:
        """Return the source of `left` batches, and that of columns beside others; None: not used.

        They draw anew at each start, of which the number of `updates` differs. Raises UserMistake
        if --teacher_data_share makes no whole columns, or what is held does not fit in memory.
        """
        algorithm, config, group = self._algorithm, self._config, self._group
        mine = (0, 1) if is_own else (group.rank, group.size)
        draws_itself = defines(algorithm.recorded_source)
        held = all_unrolls(games, algorithm, mine, self._go_on) if draws_itself else None

        def make(share: float, count: int | None) -> BatchSource:
            # Of shared games all learners have the same order, and each takes its share.
            rank = group.rank if is_own or draws_itself else 0
            seed = [config.seed, updates, rank] + [1] * (count is None)
            if held is None:
                columns = feature_settings.columns_beside(config.batch_size, share)
                return OfflineSource(games, algorithm, columns, count, seed, mine)
            drawn = algorithm.recorded_source(held, share, seed)
            return OwnSource(lambda _: drawn, drawn, algorithm.unroll)

        beside = config.teacher_data_share
        return make(1.0, left) if left else None, make(beside, None) if beside else None

    def _collect(self, data: Data) -> None:
        """Let the teachers play what this learner's share of --teacher_steps lacks."""
        config, group, steps = self._config, self._group, 0
        with contextlib.suppress(BadData):  # nothing is there, or no game is complete
            steps = read(self._agent, data, _quiet, self._go_on).steps
        missing = -(-config.teacher_steps // group.size) - steps
        if missing <= 0:
            return
        # With --teacher_cost=0 the teacher only plays.
        teachers = self._teachers or self._tools.load_teachers(config, self._spec)
        about, (folder,) = data.about._replace(policy=config.teacher), data.folders
        self._tools.collect(
            teachers,
            config,
            self._spec,
            folder,
            about,
            missing,
            group.rank,
            self._go_on,
            self._say,
        )


def why_unsuitable(config: Config, algorithm: Algorithm) -> str:
    """Return why the flags do not fit the algorithm, as a sentence; empty if they do."""
    if not config.planned_offline_updates or defines(algorithm.offline_update):
        return ""
    return (
        f"--offline_updates={config.planned_offline_updates}: --algorithm={config.algorithm} has "
        f"no method offline_update (impala_mm/algorithms/interface.py explains it): give "
        f"--offline_updates=0, without which --mode=reincarnate has some"
    )


def share_beside(algorithm: Algorithm, config: Any) -> float:
    """Return the share of recorded games in later updates, which have whole columns.

    Raises UserMistake if that differs much from --teacher_data_share.
    """
    has_own = defines(algorithm.recorded_source)
    columns = algorithm.minibatch_columns if has_own else config.batch_size
    share = config.teacher_data_share
    return feature_settings.share_beside(columns, share) if columns else share


def find(agent: Agent, config: Any, run: Path, rank: int, describe: Callable[..., About]) -> Data:
    """Return the data of a student: that of --teacher_data, or its own in the run's folder."""
    unroll = unroll_spec(entry_spec(agent.spec, ()), config.unroll_length)
    about = describe(agent.spec, unroll, config)
    folders = [Path(name.strip()) for name in config.teacher_data.split(",") if name.strip()]
    own = [run / "teacher_data" / f"learner-{rank}"]
    return Data(about, folders or own, not folders)


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


@contextlib.contextmanager
def agreeing(group: LearnerGroup) -> Iterator[None]:
    """Raise on all learners what a mistake or a stop on one of them is: UnfitTeacher or Stopped."""
    problem, stopped = "", False
    try:
        yield
    except (UserMistake, BadLevel) as error:
        problem = str(error)
    except Stopped:
        stopped = True
    # The heartbeat continues while others still play; one that hangs sends none itself.
    everyones = heartbeat.of_learner().beat_during(
        lambda: group.gather((problem, stopped), "teachers_problems"), math.inf
    )
    if problems := [text for text, _ in everyones if text]:
        raise UnfitTeacher(problems[0])
    if any(stopped for _, stopped in everyones):
        raise Stopped


def _check(returns: Returns, teacher: str) -> None:
    """Raise UserMistake if a student's score cannot be measured by these."""
    if not returns.teacher > returns.random:
        raise UserMistake(
            f"--teacher={teacher} has a mean return of {returns.teacher:.2f}, which is not above "
            f"that of a random policy, {returns.random:.2f}: there is nothing to learn from it; "
            f"give --teacher_return and --random_return if they were measured wrongly"
        )


def _quiet(message: str) -> None:
    """Print nothing: rank 0 does."""
