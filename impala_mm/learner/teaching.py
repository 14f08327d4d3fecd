"""The start of a student's run: its teachers are loaded, and their mean returns measured, once.

`setup` calls this when a learner's variables are those of its checkpoint. Every learner loads the
teachers, and rank 0 measures. A resumed run whose teachers' cost has fallen to 0 loads none.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_mm.algorithms.features.teacher import UNKNOWN, Distillation, Returns
from impala_mm.algorithms.interface import Algorithm, PolicyLoader
from impala_mm.config.errors import UserMistake
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.types import BadLevel, EnvironmentSpec
from impala_mm.runtime import heartbeat
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
    # `features.teacher.Teacher` has
    load_teachers: Callable[[Any, EnvironmentSpec], Sequence[Any]]
    # (teacher or None, settings, spec, meanwhile) -> its mean return; None plays random actions.
    # `meanwhile` gets the number of games that have ended, that of all, and their steps.
    mean_return: Callable[[Any, Any, EnvironmentSpec, Callable[[int, int, int], None]], float]
    # (teachers, settings, spec, folder, description, steps, seed, meanwhile, say): adds to data
    collect: Callable[..., None] = lambda *_: None
    # (spec, layout of unrolls, settings) -> the description of recorded data, `data_set.About`
    describe_data: Callable[..., Any] = lambda *_: None
    stopping: Callable[[], bool] = lambda: False  # whether the user wants the run to end


def begin(
    algorithm: Algorithm,
    config: Any,
    spec: EnvironmentSpec,
    group: LearnerGroup,
    tools: PolicyTools,
    say: Say,
    is_new: bool = True,
) -> dict[str, float]:
    """Give an algorithm its teachers; return their mean returns, by key, if they are new.

    They are measured if the teachers' cost follows them and, with --mode=reincarnate, for a new run
    of any method. Raises UnfitTeacher, on all learners alike.
    """
    distillation: Distillation | None = algorithm.features.get(Distillation)
    evaluates = config.mode == "reincarnate"
    if distillation is None and not (evaluates and is_new):
        return {}
    tell = say if group.rank == 0 else lambda message: None
    if distillation and distillation.is_over():
        tell(f"the cost of --teacher={config.teacher} has fallen to 0: no learner reads it again")
        return {}
    known = returns = (
        distillation.returns()
        if distillation
        else Returns(config.teacher_return, config.random_return)
    )
    is_needed = distillation is not None and distillation.needs_returns
    found: Sequence[Any] = ()
    with agreeing(group):
        found = tools.load_teachers(config, spec)
        for note in (note for teacher in found for note in teacher.notes):
            tell(note)
        if (is_needed or evaluates) and group.rank == 0:
            if UNKNOWN in known:
                returns = _measure(found, config, known, spec, tools, say)
            if is_needed:
                _check(returns, config.teacher)
    returns = group.gather(returns, "teachers")[0]
    if distillation:
        distillation.begin(found, spec.frame_stack)
        distillation.set_returns(returns)
    if returns == known:
        return {}
    return {"teacher_return": returns.teacher, "random_return": returns.random}


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
    everyones = _gather(group, (problem, stopped))
    if problems := [each for each, _ in everyones if each]:
        raise UnfitTeacher(problems[0])
    if any(stopped for _, stopped in everyones):
        raise Stopped


def _gather(group: LearnerGroup, value: Any) -> list[Any]:
    """Return the value of every learner; the heartbeat continues while others still play.

    One that hangs sends no heartbeat itself.
    """
    alive = heartbeat.of_learner()
    return alive.beat_during(lambda: group.gather(value, "teachers_problems"), math.inf)


def _measure(
    teachers: Sequence[Any],
    config: Any,
    known: Returns,
    spec: EnvironmentSpec,
    tools: PolicyTools,
    say: Say,
) -> Returns:
    """Return the mean returns, of which those that are not known are measured."""
    (teacher, random), began = known, time.monotonic()
    line = _Progress(tools, say)
    if teacher == UNKNOWN:
        say(
            f"--teacher={config.teacher} plays {config.teacher_episodes} games, for its mean return"
        )
        each = [
            tools.mean_return(one, config, spec, line.of(f"the teacher {one.name}"))
            for one in teachers
        ]
        teacher = float(np.mean(each))
    if random == UNKNOWN:
        published = None if "," in config.level_name else spec.scores  # those of one level
        random = (
            published.random
            if published
            else tools.mean_return(None, config, spec, line.of("a random policy"))
        )
    say(
        f"mean return of the teacher {teacher:.2f}, of a random policy {random:.2f} "
        f"({time.monotonic() - began:.1f} s)"
    )
    return Returns(teacher, random)


class _Progress:
    """Lines that say how many games have been played."""

    def __init__(self, tools: PolicyTools, say: Say):
        self._tools, self._say, self._line = tools, say, Interval(_LINE_SECONDS)

    def of(self, player: str) -> Callable[[int, int, int], None]:
        """Return what is called between the steps of a player's games.

        It sends the heartbeat, prints a line if it is time, and raises Stopped.
        """
        began, beat = time.monotonic(), heartbeat.of_learner().beat

        def meanwhile(played: int, games: int, steps: int) -> None:
            beat()
            if self._tools.stopping():
                raise Stopped
            if not self._line.due(now := time.monotonic()):
                return
            left = (now - began) / played * (games - played) if played else 0.0
            eta = f" | ETA {format_duration(left)}" if played else ""
            self._say(f"evaluate: {player}, {played} of {games} games, {steps:,} steps{eta}")

        return meanwhile


def _check(returns: Returns, teacher: str) -> None:
    """Raise UserMistake if a student's score cannot be measured by these."""
    if not returns.teacher > returns.random:
        raise UserMistake(
            f"--teacher={teacher} has a mean return of {returns.teacher:.2f}, which is not above "
            f"that of a random policy, {returns.random:.2f}: there is nothing to learn from it; "
            f"give --teacher_return and --random_return if they were measured wrongly"
        )
