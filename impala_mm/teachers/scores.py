"""Mean returns of a teacher and of random actions on the student's levels, by playing games.

A student's score is its own mean return between these two (`algorithms.features.teacher`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.parts import action_policies
from impala_mm.data.trajectory import Entry
from impala_mm.environments import from_flags, seeds
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.evaluation import games
from impala_mm.policy.core import make_entry
from impala_mm.teachers.kinds import NoTeacher, PlayingTeacher


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
    levels = config.level_name.split(",")

    def proceed(played: Sequence[Any], steps: int) -> bool:
        meanwhile(len(returns) + len(played), config.teacher_episodes * len(levels), steps)
        return True

    for level in levels:
        copies = min(games.NUM_ENVS, config.teacher_episodes)
        seed = seeds.of_measured(config.seed)
        with TeachersGames(
            *(teacher, config, spec, level.strip(), copies, seed), life_loss_ends=False
        ) as made:
            try:
                played = games.play_games(
                    made.player,
                    made.environments,
                    games.games_per_env(config.teacher_episodes, copies),
                    explore=True,
                    idle_steps=made.idle_steps,
                    meanwhile=proceed,
                )
            except games.Unplayable as error:
                raise NoTeacher(f"{level}: {error}") from None
        returns += [game.episode_return for game in played]
    return float(np.mean(returns))


class TeachersGames:
    """Environments of the student's, and the teacher as their player; None: random actions.

    Games of Atari end without a reward as in an evaluation if the teacher is greedy. What is
    recorded shall have lost lives as a student's own games have them: each ends an episode.
    """

    def __init__(
        self,
        teacher: PlayingTeacher | None,
        config: TeacherSettings,
        spec: EnvironmentSpec,
        level: str,
        num_envs: int,
        seed: int,
        life_loss_ends: bool = True,
    ):
        options = from_flags.environment_options(config)
        self.idle_steps = 0
        if teacher and teacher.greedy and level_spec(level, **options).emulator:
            self.idle_steps = games.IDLE_STEPS
            options["no_reward_steps"] = self.idle_steps
        self.player = _Player(teacher, config, spec)
        self.environments = make_environments(
            level, num_envs, seed, life_loss_ends=life_loss_ends, **options
        )

    def __enter__(self) -> "TeachersGames":
        return self

    def __exit__(self, *error: object) -> None:
        self.environments.close()


class _Player:
    """A teacher, or random actions, as `games.play_games` lets it play."""

    def __init__(
        self, teacher: PlayingTeacher | None, config: TeacherSettings, spec: EnvironmentSpec
    ):
        self._teacher, self._spec = teacher, spec
        self._distribution = action_policies.choose(
            spec.actions, config.box_policy, config.box_deviation
        )

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
        greedy = self._teacher is not None and self._teacher.greedy
        actions = policy.mode() if greedy or not explore else policy.sample()
        return tf.nest.map_structure(lambda part: part.numpy(), actions), state, ()
