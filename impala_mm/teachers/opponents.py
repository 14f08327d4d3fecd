"""Policies as opponents of environments whose agents take turns: whatever a teacher may be.

--opponents names them as --teacher does: the folder of a run, of a checkpoint or of an export, a
policy of this package, a function. `environments.opponents` draws them for games.
"""

from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.config.settings import Config
from impala_mm.environments import from_flags
from impala_mm.environments.opponents import Player, RememberingPlayer
from impala_mm.environments.types import EnvironmentSpec, Step
from impala_mm.teachers.load import load_teachers
from impala_mm.teachers.playing import TeacherPlayer
from impala_mm.teachers.teacher import NoTeacher


def load_player(name: str, config: Config, spec: EnvironmentSpec, entries: int) -> Player:
    """Return a player by its name in --opponents, for this number of entries; raise NoTeacher."""
    settings = TeacherSettings(
        level_name=config.level_name,
        teacher=name,
        trust_teacher=getattr(config, "trust_teacher", False),
        **from_flags.environment_options(config),
    )
    try:
        (teacher,) = load_teachers(settings, spec)
    except NoTeacher as error:
        raise NoTeacher(str(error).replace("--teacher=", "--opponents=", 1)) from error.__cause__
    policy = TeacherPlayer(teacher, settings, spec, spec.level_name)
    begin = policy.initial_state(entries)

    def choose(asked: Step, actions: Any, state: list[Any]) -> tuple[Any, list[Any]]:
        seen = asked.observation, asked.reward, actions, asked.first, asked.mask
        memory = tf.nest.pack_sequence_as(begin, [tf.constant(part) for part in state])
        chosen, after, _ = policy.step(policy.entry(*seen), memory, explore=True)
        return chosen, tf.nest.flatten(after)

    return RememberingPlayer(choose, tf.nest.flatten(begin))
