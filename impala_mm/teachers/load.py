"""The teachers that --teacher names, checked against the student's levels.

Each is made by the class of its kind in `teachers.FORMATS`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

import nets
from impala_mm.algorithms.feature_settings import TeacherSettings, action_numbers
from impala_mm.config import flags
from impala_mm.config.errors import ImpalaError
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.records import checkpoint
from impala_mm.teachers import FORMATS
from impala_mm.teachers.teacher import NoTeacher, PlayingTeacher, Request

# Logit of an action that the teacher lacks: less likely than 1 in 500 million of its most likely.
_NEVER = -20.0


def load_teachers(config: TeacherSettings, spec: EnvironmentSpec) -> list[PlayingTeacher]:
    """Return the teachers of a student of levels with this spec; raise NoTeacher."""
    return [_load(name.strip(), config, spec) for name in config.teacher.split(",")]


def _load(name: str, config: TeacherSettings, spec: EnvironmentSpec) -> PlayingTeacher:
    order = action_numbers(config.teacher_actions)
    request = Request(name, checkpoint.resolve(name), config, spec, order)
    try:
        if order and spec.actions.discrete is None:
            raise NoTeacher(
                f"--teacher_actions orders Discrete actions, and {spec.level_name} takes "
                f"{spec.actions.describe()}"
            )
        kind = _kind(request)
        if kind.trust:
            request.demand_trust(kind.trust)
        with flags.refusals_raised():
            teacher = kind(request)
        _check_values(teacher, config, order)
        if "value" in config.distilled:
            teacher.notes += _other_values(name, teacher.trained_with, config)
        if not order:
            return teacher
        assert teacher.num_actions
        return Reordered(teacher, order, teacher.num_actions)
    except (ImpalaError, nets.Unsuitable) as error:
        raise NoTeacher(f"--teacher={name}: {error}") from error.__cause__
    except OSError as error:
        raise NoTeacher(
            f"--teacher={name}: {error.filename or request.path} cannot be read: "
            f"{error.strerror or error}: make it readable for this user, or give another teacher"
        ) from None


def _kind(request: Request) -> type[PlayingTeacher]:
    """Return the kind of a teacher; raise NoTeacher if it is of none."""
    kinds: list[type[PlayingTeacher]] = [FORMATS[name] for name in FORMATS.names]
    for kind in reversed(kinds):
        if kind.recognises(request.name, request.path):
            return kind
    *words, last = (kind.in_words for kind in kinds)
    raise NoTeacher(
        f"{checkpoint.why_missing(request.path)}: a teacher is {', '.join(words)} or {last}"
    )


def _check_values(
    teacher: PlayingTeacher, config: TeacherSettings, order: Sequence[int | None]
) -> None:
    """Raise NoTeacher if --distill compares values that the teacher lacks."""
    if "value" not in config.distilled:
        return
    asked = f"--distill={config.distill} compares values"
    if not config.computes_action_values:
        if not (teacher.greedy or teacher.has_values):
            level = config.level_name
            raise NoTeacher(f"{asked}, and the teacher has none of {level}: use --distill=policy")
    elif not teacher.greedy:
        raise NoTeacher(
            f"{asked} of actions, and the teacher is a policy, which has none: use "
            f"--distill=policy, or a teacher of --algorithm=dqn or r2d2"
        )
    elif None in order:
        raise NoTeacher(
            f"{asked} of actions, and --teacher_actions={config.teacher_actions} has actions that "
            f"the teacher lacks: use --distill=policy"
        )


def _other_values(name: str, theirs: Mapping[str, Any], ours: Config) -> list[str]:
    """Return why the teacher's values stand for other returns than the student's, as sentences.

    `theirs` are the values of flags with which the teacher was trained.
    """
    return [
        f"the teacher {name} was trained with --{flag}={there}, and its student has {here}: their "
        f"values stand for different returns, which --distill compares"
        for flag, there in theirs.items()
        if there != (here := getattr(ours, flag))
    ]


class Reordered(PlayingTeacher):
    """A teacher whose actions have another order."""

    def __init__(self, teacher: PlayingTeacher, numbers: Sequence[int | None], num_actions: int):
        """Reorder the actions of a teacher that has `num_actions`."""
        self._teacher, self.has_values = teacher, teacher.has_values
        self.name, self.notes, self.greedy = teacher.name, teacher.notes, teacher.greedy
        # For each action of the student the teacher's, which is 0 where it lacks one.
        self._theirs = tf.constant([n or 0 for n in numbers])
        self._has = tf.constant([n is not None for n in numbers])
        # For each action of the teacher the student's, which is 0 where the student lacks one.
        ours = [numbers.index(n) if n in numbers else None for n in range(num_actions)]
        self._ours = tf.constant([n or 0 for n in ours])
        self._taken = tf.constant([n is not None for n in ours])

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes."""
        return self._teacher.initial_state(batch)

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""
        logits, state = self._teacher.step(self._read(entry), state)
        return self._answer(logits), state

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters [T+1, B, P] for entries [T+1, B, ...] of unrolls."""
        return self._answer(self._teacher.parameters(self._read(entries)))

    def judge(self, entries: Entry) -> tuple[tf.Tensor, tf.Tensor]:
        """Return these parameters, and the values [T+1, B]."""
        logits, values = self._teacher.judge(self._read(entries))
        return self._answer(logits), values

    def _read(self, entries: Entry) -> Entry:
        """Return the student's entries [...] as the teacher's."""
        mask = entries.mask
        if not isinstance(mask, tuple):
            mask = tf.gather(mask, self._ours, axis=-1) & self._taken
        return entries._replace(action=tf.gather(self._theirs, entries.action), mask=mask)

    def _answer(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the teacher's logits [..., A] in the student's order."""
        ordered = tf.gather(logits, self._theirs, axis=-1)
        most = tf.reduce_max(tf.where(self._has, ordered, logits.dtype.min), -1, keepdims=True)
        return tf.where(self._has, ordered, most + _NEVER)
