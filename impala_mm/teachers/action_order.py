"""Another order of actions: --teacher_actions=2,0,- lets a teacher read and answer in its own.

For each action of the student it names the teacher's, or none. The teacher then reads the student's
last action and mask as its own actions, and its answer is put into the student's order.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from impala_mm.data.trajectory import Entry
from impala_mm.teachers.kinds import NoTeacher, PlayingTeacher

# Logit of an action that the teacher lacks: less likely than 1 in 500 million of its most likely.
_NEVER = -20.0


@dataclasses.dataclass(frozen=True)
class ActionOrder:
    """The number of the teacher's action for each of the student; None: the teacher lacks it."""

    numbers: tuple[int | None, ...]

    def check(self, student: int, teacher: int) -> None:
        """Raise NoTeacher unless it fits these numbers of actions."""
        if len(self.numbers) != student:
            raise NoTeacher(
                f"it names {len(self.numbers)} actions, and the student has {student}: name the "
                f"teacher's action for each of these"
            )
        if wrong := [n for n in self.numbers if n is not None and n >= teacher]:
            raise NoTeacher(
                f"the teacher has no action {wrong[0]}: its actions are 0 to {teacher - 1}"
            )


class Reordered:
    """A teacher whose actions have another order."""

    def __init__(self, teacher: PlayingTeacher, order: ActionOrder, num_actions: int):
        """Reorder the actions of a teacher that has `num_actions`."""
        self._teacher = teacher
        self.name, self.notes, self.greedy = teacher.name, teacher.notes, teacher.greedy
        numbers = order.numbers
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
        """Return these parameters, and the values [T+1, B], if the teacher has a `judge`."""
        logits, values = self._teacher.judge(self._read(entries))  # type: ignore[attr-defined]
        return self._answer(logits), values

    def _read(self, entries: Entry) -> Entry:
        """Return the student's entries [...] as the teacher's."""
        mask = entries.mask
        if not isinstance(mask, tuple):
            mask = tf.gather(mask, self._ours, axis=-1) & self._taken
        return entries._replace(action=tf.gather(self._theirs, entries.action), mask=mask)

    def _answer(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the teacher's logits [..., A] in the student's order."""
        found = tf.gather(logits, self._theirs, axis=-1)
        most = tf.reduce_max(tf.where(self._has, found, logits.dtype.min), -1, keepdims=True)
        return tf.where(self._has, found, most + _NEVER)
