"""The base classes of all kinds of teachers, which `load` makes and `playing` lets play.

A teacher answers with the parameters of the student's distribution of actions (logits, for Discrete
ones), so that the student compares its own policy with it, whatever the teacher is.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from impala_mm.algorithms.feature import Teacher
from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import Entry
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.types import EnvironmentSpec
from nets.frame_stack import FrameStack

LEAST = 1e-6  # probability that stands for 0 in a teacher's policy


class NoTeacher(UserMistake):
    """A teacher of --teacher cannot teach this student; the message says why."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The name of a teacher, and the student that it shall teach."""

    name: str  # as --teacher has it
    path: Path  # the same as a path, or the folder of a policy of this package
    config: TeacherSettings  # the student's
    spec: EnvironmentSpec  # of the student's levels
    # The teacher's action for each of the student, by --teacher_actions; None: it lacks it.
    order: tuple[int | None, ...] = ()

    def fit(self, count: int | None = None) -> EnvironmentSpec:
        """Return the spec as a teacher with `count` actions sees it; None: as many as are named.

        Raises NoTeacher if --teacher_actions does not fit.
        """
        if not self.order:
            return self.spec
        student, named = self.spec.actions.discrete, max(n for n in self.order if n is not None)
        if len(self.order) != student:
            raise NoTeacher(
                f"it names {len(self.order)} actions, and the student has {student}: name the "
                f"teacher's action for each of these"
            )
        if count is not None and named >= count:
            raise NoTeacher(f"the teacher has no action {named}: its actions are 0 to {count - 1}")
        actions = ActionSpec(Discrete(named + 1 if count is None else count))
        masks = actions.mask_specs if self.spec.masks else ()
        return self.spec._replace(actions=actions, masks=masks)

    def fit_discrete(self, kind: str, count: int | None = None) -> tuple[EnvironmentSpec, int]:
        """Return `fit` and the number of Discrete actions in it; raise NoTeacher if it has none."""
        spec = self.fit(count)
        if spec.actions.discrete is None:
            raise NoTeacher(
                f"{kind} teaches Discrete actions, and {spec.level_name} takes "
                f"{spec.actions.describe()}"
            )
        return spec, spec.actions.discrete

    def demand_trust(self, reason: str) -> None:
        """Raise NoTeacher for this reason, a sentence, unless --trust_teacher is given."""
        if not self.config.trust_teacher:
            raise NoTeacher(f"{reason}: give --trust_teacher if you know where it is from")


class PlayingTeacher(Teacher):
    """A teacher by its name in --teacher.

    A kind of teachers is a subclass in `teachers.FORMATS`, which `load` makes with a `Request`.
    """

    in_words: ClassVar[str]  # this kind, as in "a teacher is a SavedModel or ..."
    # Why teachers of this kind need --trust_teacher; "" if nothing in their files is executed.
    trust: ClassVar[str] = ""
    has_values: bool = False  # whether `judge` returns values of observations
    num_actions: int | None = None  # None for numbers
    # Flags with which it was trained, as far as they are known, which say what its values mean.
    trained_with: Mapping[str, Any] = {}

    def __init__(self, request: Request):
        self.name = request.name
        self.notes = list[str]()  # sentences for the user

    @staticmethod
    def recognises(name: str, path: Path) -> bool:
        """Return whether --teacher=name, or what is at this path, is of this kind."""
        raise NotImplementedError


class ObservingTeacher(PlayingTeacher):
    """A teacher that reads an observation, or the newest frames of it, and remembers no others."""

    num_actions: int

    def __init__(self, request: Request, spec: EnvironmentSpec):
        """Read the observations of levels with this spec."""
        super().__init__(request)
        self._frames = Frames(spec.observation, spec.frame_stack)

    def answer(self, observations: Any) -> tf.Tensor:
        """Return the parameters [N, P] for observations [N, ...], stacked as a network reads them.

        It is called in a tf.function, too.
        """
        raise NotImplementedError

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes: the frames that are stacked."""
        return self._frames.initial_state(batch)

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""
        read, state = self._frames.step(entry, state)
        return self.answer(read), state

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters [T+1, B, P] for entries [T+1, B, ...] of unrolls."""
        return ask_at_once(self.answer, self._frames.unroll(entries), self.num_actions)


class Frames:
    """The newest frames of each episode; 1: observations are read as they are."""

    def __init__(self, observation: Any, count: int):
        """Stack `count` observations, which have these specs."""
        self._stack = FrameStack(count, observation) if count > 1 else None
        self.specs = observation  # of what is read, without leading axes
        if count > 1:
            self.specs = tf.nest.map_structure(
                lambda x: tf.TensorSpec([*x.shape[:-1], count * x.shape[-1]], x.dtype), observation
            )

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the memory at the start of `batch` episodes: earlier frames, which are zeros."""
        return self._stack.initial_state(batch) if self._stack else ()

    def step(self, entry: Entry, state: Any) -> tuple[Any, Any]:
        """Return (what is read [B, ...], memory) after entries [B, ...]."""
        if not self._stack:
            return entry.observation, state
        return self._stack.step(entry.observation, entry.first, state)

    def unroll(self, entries: Entry) -> Any:
        """Return what is read [T+1, B, ...] for entries [T+1, B, ...], from an empty memory."""
        if not self._stack:
            return entries.observation
        state = self.initial_state(tf.shape(entries.first)[1])
        return self._stack.unroll(entries.observation, entries.first, state)[0]


def ask_at_once(ask: Callable[[Any], tf.Tensor], read: Any, num_parameters: int) -> tf.Tensor:
    """Return the parameters [T, B, P] for a nest [T, B, ...], by a function of [N, ...]."""
    sizes = tf.shape(tf.nest.flatten(read)[0])
    flat = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), read)
    return tf.reshape(ask(flat), [sizes[0], sizes[1], num_parameters])
