"""The games that teachers play: to measure their mean returns, and to be learnt from.

A student's score is its own mean return between its teacher's and that of random actions
(`algorithms.features.teacher`). `learner.phases` lets teachers play what their student learns from
before it plays itself.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.interface import entry_spec
from impala_mm.algorithms.parts import action_policies
from impala_mm.data.trajectory import Entry
from impala_mm.environments import from_flags, seeds
from impala_mm.environments.make import level_names, level_spec, make_environments
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.evaluation import games, recording
from impala_mm.policy.core import make_entry
from impala_mm.replay.data_set import About, BadData, DataSetWriter, unroll_spec
from impala_mm.runtime.log import Say
from impala_mm.runtime.timing import Interval, format_duration
from impala_mm.teachers.teacher import NoTeacher, PlayingTeacher

_LINE_SECONDS = 3.0  # seconds between progress lines
_STEPS_EACH = 500  # of each environment, below which fewer play at a time: games end late


def mean_return(
    teacher: PlayingTeacher | None,
    config: TeacherSettings,
    spec: EnvironmentSpec,
    meanwhile: Callable[[int, int, int], None] = lambda played, games, steps: None,
) -> float:
    """Return the mean return of a teacher over complete games; None: of random actions.

    It plays --teacher_episodes games of each of the student's levels. `meanwhile` is called between
    their steps, with the numbers of games that have ended, of all games, and of the steps in this
    level. Games of Atari end without a reward as in an evaluation if the teacher is greedy.
    Raises NoTeacher if the environments fail too often.
    """
    returns: list[float] = []
    levels = level_names(config.level_name)

    def proceed(played: Sequence[Any], steps: int) -> bool:
        meanwhile(len(returns) + len(played), config.teacher_episodes * len(levels), steps)
        return True

    for level in levels:
        copies = min(games.NUM_ENVS, config.teacher_episodes)
        quotas = games.games_per_env(config.teacher_episodes, copies, spec.agents)
        seed = seeds.of_measured(config.seed)
        player = TeacherPlayer(teacher, config, spec, level)
        with contextlib.closing(
            player.make_environments(copies, seed, life_loss_ends=False)
        ) as environments:
            try:
                played = games.play_games(
                    player,
                    environments,
                    games.each_plays(quotas),
                    explore=True,
                    idle_steps=player.idle_steps,
                    meanwhile=proceed,
                )
            except games.Unplayable as error:
                raise NoTeacher(f"{level}: {error}") from None
        returns += [game.episode_return for game in played]
    return float(np.mean(returns))


def collect(
    teachers: Sequence[PlayingTeacher],
    config: TeacherSettings,
    spec: EnvironmentSpec,
    folder: Path,
    about: About,
    steps: int,
    learner: int,
    meanwhile: Callable[[], None],
    say: Say,
) -> None:
    """Add games of at least `steps` steps to a data set.

    All teachers and levels shall have equal parts of it, those of an earlier start counted in.
    `about` describes the data, and `learner` is the rank of the learner whose teachers they are.
    Games are played to their ends. `meanwhile` is called between steps, and may raise an exception.
    Raises BadData if the games cannot be written or played.
    """
    levels = level_names(config.level_name)
    parts = [(teacher, level) for teacher in teachers for level in levels]
    unroll = unroll_spec(entry_spec(spec, ()), about.unroll_length)
    data = DataSetWriter(folder, about)
    line = _Progress(steps, say)
    say(f"collect: the teacher plays {steps:,} steps into {folder}")
    try:
        names = [f"{teacher.name} on {level}" for teacher, level in parts]
        before = [(data.about.parts or {}).get(name, 0) for name in names]
        for (teacher, level), data.part, most in zip(
            parts, names, _fill(steps, before), strict=True
        ):
            if not most:
                continue
            num_envs = max(1, min(games.NUM_ENVS, most // _STEPS_EACH))
            # Other games than those that are there already.
            start = seeds.of_recorded(config.seed, data.next_stream, learner)

            def is_enough(column: int, played: int, made: int, most: int = most) -> bool:
                return made >= most

            def proceed(played: Sequence[Any], made: int) -> bool:
                meanwhile()
                line.show(made)
                return True

            player = TeacherPlayer(teacher, config, spec, level)
            with contextlib.closing(player.make_environments(num_envs, start)) as environments:
                played = games.play_games(
                    player,
                    environments,
                    is_enough,
                    explore=True,
                    idle_steps=player.idle_steps,
                    observer=recording.Recorder(environments.spec, unroll, data),
                    meanwhile=proceed,
                    say=say,
                )
            line.before += sum(game.length for game in played)
    except games.Unplayable as error:
        raise BadData(f"the teacher cannot play: {error}") from None
    finally:
        data.close()
    say(f"collect: {data.about.contents}")


def _fill(steps: int, before: Sequence[int]) -> list[int]:
    """Return how many of `steps` each part gets, of which `before` has so many, to be equal."""
    filled = list(range(len(before)))
    total = steps + sum(before)
    while above := [i for i in filled if before[i] * len(filled) > total]:
        filled = [i for i in filled if i not in above]
        total = steps + sum(before[i] for i in filled)
    parts = [0] * len(before)
    for number, i in enumerate(filled):
        until, since = total * (number + 1) // len(filled), total * number // len(filled)
        parts[i] = until - since - before[i]
    return parts


class _Progress:
    """Lines that say how far the teachers are."""

    def __init__(self, steps: int, say: Say):
        self._steps, self._say = steps, say
        self.before = 0  # steps of the teachers that have played their parts
        self._began, self._line = time.monotonic(), Interval(_LINE_SECONDS)

    def show(self, steps: int) -> None:
        """Print a line if it is time; `steps` are those of the teacher that plays."""
        if not self._line.due(now := time.monotonic()):
            return
        made = self.before + steps
        rate = made / (now - self._began)
        left = max(self._steps - made, 0) / max(rate, 1e-9)
        self._say(
            f"collect: {made:,} of {self._steps:,} steps | {rate:,.0f}/s | "
            f"ETA {format_duration(left)}"
        )


class TeacherPlayer:
    """A teacher as `games.play_games` lets it play in the student's levels; None: random actions.

    Games of Atari begin without a reward as in an evaluation if the teacher is greedy.
    """

    def __init__(
        self,
        teacher: PlayingTeacher | None,
        config: TeacherSettings,
        spec: EnvironmentSpec,
        level: str,
    ):
        self._teacher, self._spec, self._level = teacher, spec, level
        self._distribution = action_policies.choose(
            spec.actions, config.box_policy, config.box_deviation
        )
        self._greedy = teacher is not None and teacher.greedy
        self._options = from_flags.environment_options(config)
        self.idle_steps = 0
        if self._greedy and level_spec(level, **self._options).emulator:
            self.idle_steps = self._options["no_reward_steps"] = games.IDLE_STEPS

    def make_environments(self, count: int, seed: int, **changes: Any) -> Any:
        """Return environments of the level, with these options in place of the student's.

        What is recorded shall have lost lives as a student's own games have them.
        """
        return make_environments(self._level, count, seed, **(self._options | changes))

    def initial_state(self, batch: int) -> Any:
        """Return the teacher's memory at the start of `batch` episodes."""
        return self._teacher.initial_state(batch) if self._teacher else ()

    def entry(
        self, observation: Any, reward: Any, action: Any, first: Any, mask: Any = ()
    ) -> Entry:
        """Return entries [B, ...] with the fields that acting reads."""
        return make_entry(self._spec, observation, reward, action, first, mask)

    def step(self, entry: Entry, state: Any, explore: bool) -> tuple[Any, Any, Any]:
        """Return (actions, memory, ()) for entries [B, ...]; random ones have equal chances."""
        if self._teacher:
            parameters, state = self._teacher.step(entry, state)
        else:
            parameters = tf.zeros([len(entry.first), self._distribution.num_parameters])
        policy = self._distribution.make(parameters, entry.mask)
        actions = policy.mode() if self._greedy or not explore else policy.sample()
        return tf.nest.map_structure(lambda part: part.numpy(), actions), state, ()
