"""A teacher that acts in place of the student, in the first steps of episodes (JSRL, 2204.02372).

    an episode begins: draw for how many steps the teacher acts       `_begin_episodes`
    teacher(entry) -> its action, where it acts                       `take_over`
    the unroll has that action, and the policy that chose it

It acts for up to --guide_steps steps, and for --guide_share of the later ones. Both fall to 0 in a
line, so that the student takes over from the end of an episode towards its beginning. The share
that remains is a variable that actors receive with the parameters, and that checkpoints contain.
The student's network reads all entries, so that it has its memory when it takes over.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.feature import Feature, Host, Teacher, TeacherLoader
from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.features.teacher import last_frame
from impala_mm.algorithms.parts import optimizers
from impala_mm.algorithms.types import Context, Role
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments.types import EnvironmentSpec

_CERTAIN = 20.0  # logit of the action that a teacher of values takes; the others have 0


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return the guidance that the flags ask for, in every role."""
    return [Guidance(config)] if isinstance(config, TeacherSettings) and config.guides else []


class Guidance(Feature):
    """The share of --guide_steps and --guide_share that remains."""

    needs_actors = "the teacher acts in the actors"

    def __init__(self, config: TeacherSettings):
        self.config = config
        self.share = tf.Variable(1.0, trainable=False, name="guide_share")
        self.guides = [self.share]
        self.records = frozenset({"all_values"})

    def attach(self, host: Host) -> None:
        """Take the distribution of the actions, of which a teacher answers with parameters."""
        self.host = host

    def begin_update(self, context: Context) -> dict[str, tf.Tensor]:
        """Set the share of this update, and return its metrics."""
        last = last_frame(self.config, context)
        # The least so far: with more frames planned, a resumed run does not get its guide back.
        share = tf.minimum(self.share, optimizers.linear_decay(1.0, context.frames, last))
        return {"guidance": self.share.assign(share)}

    def acting_hook(self, size: int, seed: Sequence[int], load: TeacherLoader) -> "Guide":
        """Return the teachers of `size` environments."""
        return Guide(self, size, load, seed)


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
            distribution = self._guidance.host.distribution
            self._asked = [_Asked(each, distribution, self._size) for each in self._load(config)]
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
            if self._guidance.host.records_policy:
                extras = [_where(its, parameters, extras[0]), *extras[1:]]
        return actions, extras

    def _begin_episodes(self, first: np.ndarray, share: float) -> None:
        begun = np.flatnonzero(first)
        most = int(np.ceil(share * self._guidance.config.guide_steps))
        self._left[begun] = self._random.integers(1, most + 1, size=len(begun)) if most else 0
        self._whose[begun] = self._random.integers(len(self._asked), size=len(begun))


class _Asked:
    """A teacher with its memory of E environments."""

    def __init__(self, teacher: Teacher, distribution: Any, size: int):
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
