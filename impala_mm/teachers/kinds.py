"""The interface of all kinds of teachers: `load` makes them, `scores` lets them play.

A teacher answers with the parameters of the student's distribution of actions (logits, for Discrete
ones), so that the student compares its own policy with it, whatever the teacher is.
"""

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import Entry
from impala_mm.environments.types import EnvironmentSpec

LEAST = 1e-6  # probability that stands for 0 in a teacher's policy


class NoTeacher(UserMistake):
    """A teacher of --teacher cannot teach this student; the message says why."""


# (number of actions of a teacher, or None if it is not known) -> the spec as the teacher sees it
FitActions = Callable[[int | None], EnvironmentSpec]


class PlayingTeacher(Protocol):
    """A teacher that also plays: a `features.teacher.Teacher` with a memory of its own."""

    name: str  # as --teacher has it
    notes: list[str]  # sentences for the user
    # Whether it takes its most likely action: a teacher that computes values of actions, which are
    # its parameters x --teacher_temperature.
    greedy: bool

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes."""

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters [T+1, B, P] for entries [T+1, B, ...] of unrolls.

        It begins them without a memory.
        """
