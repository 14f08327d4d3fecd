"""A teacher that acts in place of the student, in the first steps of episodes (JSRL).

    an episode begins: draw for how many steps the teacher acts       `_begin_episodes`
    teacher(entry) -> its action, where it acts                       `Guide.take_over`
    the unroll has that action, and the policy that chose it

`algorithms.guidance` has the share of --guide_steps that remains. The student's network reads all
entries, so that it has its memory when it takes over.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.guidance import Guidance
from impala_mm.data.trajectory import Entry

_CERTAIN = 20.0  # logit of the action that a teacher of values takes; the others have 0


class GuidingTeacher(Protocol):
    """A policy that may act, such as those of `teachers`."""

    greedy: bool  # whether it takes its most likely action

    def initial_state(self, batch: int) -> Any:
        """Return its memory at the start of `batch` episodes."""

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""


TeacherLoader = Callable[[], Sequence[GuidingTeacher]]


class Guide:
    """The teachers of E environments; each of several guides its share of the episodes."""

    def __init__(
        self,
        guidance: Guidance,
        size: int,
        load: TeacherLoader,
        seed: Sequence[int],
    ):
        """Guide `size` environments; the teachers are loaded when they first act."""
        self._guidance, self._load, self._size = guidance, load, size
        self._random = np.random.default_rng(seed)
        self._asked: list[_Asked] = []
        self._left = np.zeros(size, int)  # steps for which a teacher still acts
        self._whose = np.zeros(size, int)  # which of the teachers guides the episode

    def take_over(self, entry: Entry, actions: Any, extras: list[Any]) -> tuple[Any, list[Any]]:
        """Return actions and extras in which those of guided environments are the teacher's."""
        config, share = self._guidance.config, float(self._guidance.share)
        if share == 0.0:
            return actions, extras
        if not self._asked:
            distribution = self._guidance.distribution
            self._asked = [_Asked(each, distribution, self._size) for each in self._load()]
        self._begin_episodes(entry.first, share)
        guided = self._left > 0
        self._left -= guided
        mixes = config.guide_share > 0
        if mixes:
            guided = guided | (self._random.random(self._size) < share * config.guide_share)
        for number, teacher in enumerate(self._asked):
            its = guided & (self._whose == number)
            if not (mixes or its.any()):
                continue  # it will act again only after the start of an episode
            theirs, parameters = teacher.ask(entry)
            actions = tf.nest.map_structure(
                lambda a, b, its=its: _where(its, b, a), actions, theirs
            )
            if self._guidance.records_policy:
                extras = [_where(its, parameters, extras[0]), *extras[1:]]
        return actions, extras

    def _begin_episodes(self, first: np.ndarray, share: float) -> None:
        begun = np.flatnonzero(first)
        most = int(np.ceil(share * self._guidance.config.guide_steps))
        self._left[begun] = self._random.integers(1, most + 1, size=len(begun)) if most else 0
        self._whose[begun] = self._random.integers(len(self._asked), size=len(begun))


class _Asked:
    """A teacher with its memory of E environments."""

    def __init__(self, teacher: GuidingTeacher, distribution: Any, size: int):
        self._state = teacher.initial_state(size)

        def step(entry: Entry, state: Any) -> tuple[Any, tf.Tensor, Any]:
            parameters, state = teacher.step(entry, state)
            policy = distribution.make(parameters, entry.mask)
            if not teacher.greedy:
                return policy.sample(), parameters, state
            best = policy.mode()
            return best, _CERTAIN * tf.one_hot(best, tf.shape(parameters)[-1]), state

        self._step = tf.function(step, autograph=False)

    def ask(self, entry: Entry) -> tuple[Any, np.ndarray]:
        """Return (actions, parameters of the policy that chose them) for entries [E, ...]."""
        read = entry._replace(terminated=(), truncated=(), extras=())
        read = tf.nest.map_structure(tf.constant, read)
        actions, parameters, self._state = self._step(read, self._state)
        return tf.nest.map_structure(lambda part: part.numpy(), actions), parameters.numpy()


def _where(guided: np.ndarray, teachers: np.ndarray, students: Any) -> np.ndarray:
    """Return the teacher's rows where it acts, and the student's elsewhere."""
    students = np.asarray(students)
    rows = guided.reshape([-1] + [1] * (students.ndim - 1))
    return np.where(rows, teachers, students).astype(students.dtype)
