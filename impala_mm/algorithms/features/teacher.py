"""Learning from a teacher: how far the student is from it, and the cost that falls to 0.

    teachers read the batch's entries    `prepare`: parameters [T+1, B, P] of their policies
    cost x mean of what --distill names  `loss`
    the cost of the next update          `begin_update`, by frames or by the student's score

Usually --distill is KL(teacher || pi). The cross-entropy of the policy to the teacher's has the
same gradient as this divergence, which is 0 where both are the same. The loss of kickstarting
(arXiv 1803.03835) and of QDagger's online phase (arXiv 2206.01626) is this one; they differ in how
the cost falls. `teacher_losses` has the other kinds.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.feature import Added, Feature, Host, Reading, Student, Teacher, mean
from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.features import teacher_losses
from impala_mm.algorithms.parts import masking, optimizers
from impala_mm.algorithms.types import Context, Role
from impala_mm.config.flags import AUTO
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.runtime import starter

UNKNOWN = float("-inf")  # in place of a mean return


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return what the flags ask for, if the loss has a teacher."""
    if not isinstance(config, TeacherSettings) or role is not Role.LEARNER:
        return []
    return [Distillation(config)] if config.distils else []


class Returns(NamedTuple):
    """Mean returns, by which a student's score is measured; UNKNOWN where they are not known."""

    teacher: float
    random: float  # of a random policy


class Taught(NamedTuple):
    """The teachers' answers at the entries of a batch."""

    parameters: tuple[tf.Tensor, ...]  # for each teacher, [T+1, B, P] of the student's distribution
    # bool [T+1, B]: where the teachers have seen all frames that they stack.
    known: tf.Tensor
    # For each teacher its values: of actions [T+1, B, A], or of observations [T+1, B] for a student
    # that computes no others; () where they are neither in the loss nor known without a cost.
    values: tuple[tf.Tensor, ...] = ()


def has_frames(first: tf.Tensor, frame_stack: int) -> tf.Tensor:
    """Return where all frames that a network stacks are in the unroll, bool [T+1, B].

    Those before the unroll are only known as the student's network has arranged them. A teacher
    reads zeros instead.
    """
    begun = tf.cumsum(tf.cast(first, tf.int32)) > 0
    missing = tf.range(tf.shape(first)[0])[:, tf.newaxis] < frame_stack - 1
    return begun | ~missing


def last_frame(config: TeacherSettings, context: Context) -> tf.Tensor:
    """Return the frames at which teaching ends, by --teacher_frames; infinity if nobody plays.

    Without actors, the progress is that of updates, and there are no frames.
    """
    if starter.ends_offline(config):
        return tf.constant(float("inf"))
    end = config.teacher_frames
    return context.total / 2 if end == AUTO else tf.constant(end, tf.float32)


class Distillation(Feature):
    """The teachers of a student, and the share of --teacher_cost that remains."""

    offline = True

    def __init__(self, config: TeacherSettings):
        self.config = config
        self._teachers: Sequence[Teacher] = ()  # before `begin`, and once their cost is 0
        self._frame_stack = 1
        self._share = tf.Variable(1.0, trainable=False, name="teacher_share")
        # `Returns`; those that are measured take the place of UNKNOWN
        self._returns = tf.Variable(
            [config.teacher_return, config.random_return], trainable=False, name="teacher_returns"
        )
        # A resumed run does not measure returns again, and a cost of 0 stays 0.
        self.schedules = [self._share, self._returns]

    def attach(self, host: Host) -> None:
        """Take the number of the parameters that teachers answer with."""
        self._num_parameters = host.distribution.num_parameters

    # -- at the start of a run, once its checkpoint is loaded

    def is_over(self) -> bool:
        """Return whether the cost has fallen to 0, so that the teachers are no longer needed."""
        return float(self._share) == 0.0

    def begin(self, teachers: Sequence[Teacher], frame_stack: int) -> None:
        """Learn from these teachers, which read environments of that many stacked frames."""
        self._teachers, self._frame_stack = teachers, frame_stack

    def returns(self) -> Returns:
        """Return the mean returns that are known: those of the flags, or of an earlier start."""
        config, (teacher, random) = self.config, self._returns.numpy().tolist()
        return Returns(
            teacher if config.teacher_return == UNKNOWN else config.teacher_return,
            random if config.random_return == UNKNOWN else config.random_return,
        )

    def set_returns(self, returns: Returns) -> None:
        """Set the mean returns by which the student's score is measured."""
        self._returns.assign(returns)

    # -- in an update

    def begin_update(self, context: Context) -> dict[str, tf.Tensor]:
        """Set the cost of this update; return its metrics, NaN where they are not known."""
        if not self._teachers:
            return {}
        self._share.assign(tf.where(self._share > 0, self._scheduled(context), 0.0))
        metrics = {"teacher_cost": self.cost()}
        if self.config.follows_score:
            metrics["student_score"] = self._score(context)
        return metrics

    def _scheduled(self, context: Context) -> tf.Tensor:
        """Return the share of the cost at this progress, float32 [], if it has not been 0 yet."""
        config, last = self.config, last_frame(self.config, context)
        if config.teacher_method == "constant":
            last = tf.float32.max if config.teacher_frames == AUTO else last
            return tf.where(context.frames < last, 1.0, 0.0)
        if config.teacher_method == "kickstarting":
            # It stays where it is if a resumed run shall last longer.
            share = optimizers.linear_decay(1.0, context.frames, last)
            return tf.minimum(share, self._share.read_value())
        share = tf.clip_by_value(1.0 - self._score(context), 0.0, 1.0)
        # The mean return is not known before the 100th game, also after a resume.
        share = tf.where(tf.math.is_nan(share), self._share.read_value(), share)
        return tf.where(context.frames < last, share, 0.0)

    def _score(self, context: Context) -> tf.Tensor:
        """Return the student's mean return, where 0 is a random policy and 1 the teacher."""
        teacher, random = tf.unstack(self._returns.read_value())
        return (context.episode_return - random) / (teacher - random)

    def prepare(self, batch: Batch, reading: Reading) -> tuple[Batch, Any]:
        """Return the batch, and the teachers' answers `Taught`; () if there is no teacher.

        The teachers compute nothing once the cost is 0. They normalise the entries themselves.
        """
        return batch, self._ask(batch.unrolls, reading)

    def _ask(self, entries: Entry, reading: Reading) -> Any:
        if not self._teachers:
            return ()
        earlier = reading.earlier_images()
        known, before = has_frames(entries.first, self._frame_stack), 0
        if not isinstance(earlier, tuple):
            known, before = tf.ones_like(known), self._frame_stack - 1
            entries = _with_earlier(entries, earlier)
        nothing = tf.zeros_like(entries.first, tf.float32)
        each = nothing[..., tf.newaxis] + tf.zeros([self._num_parameters])
        like = (each, each if self.config.computes_action_values else nothing)
        if not self._compares_values:
            like = (each, ())

        def ask() -> list[Any]:
            answers = [self._answer(teacher, entries) for teacher in self._teachers]
            return tf.nest.map_structure(
                lambda x, as_this: tf.stop_gradient(tf.ensure_shape(x, as_this.shape)),
                answers,
                skip(),
            )

        def skip() -> list[Any]:
            return [like for _ in self._teachers]

        answers = tf.cond(self._share > 0, ask, skip)
        answers = tf.nest.map_structure(lambda x: x[before:], answers)
        parameters, values = zip(*answers, strict=True)
        return Taught(parameters, known, () if isinstance(like[1], tuple) else values)

    @property
    def _compares_values(self) -> bool:
        """Whether --distill does, or values of actions are known, whose distance is a metric."""
        config = self.config
        return "value" in config.distilled or (
            config.computes_action_values and all(teacher.greedy for teacher in self._teachers)
        )

    def _answer(self, teacher: Teacher, entries: Entry) -> tuple[tf.Tensor, Any]:
        """Return a teacher's (parameters, values); () for values that are not compared."""
        config = self.config
        if not self._compares_values:
            return teacher.parameters(entries), ()
        if not teacher.greedy:
            return teacher.judge(entries)
        # The parameters of a teacher of values are these, divided by the temperature.
        parameters = teacher.parameters(entries)
        values = parameters * config.teacher_temperature
        if config.computes_action_values:
            return parameters, values
        return parameters, tf.reduce_max(masking.allowed_only(values, entries.mask), -1)

    def loss(self, student: Student, prepared: Any) -> Added:
        """Return what --distill names, on average over the teachers, times its cost."""
        if not self._teachers:
            return Added(0.0)
        mine, answers = self._compared(student, prepared)
        terms = self._mean(self.config.distilled, mine, answers, prepared.known)
        reduced = student.reduce(terms, prepared.known)
        key = "kl_teacher_pi" if self.config.distilled == ("policy",) else "loss/teacher"
        measured = {key: student.sums(terms, prepared.known)}
        if self.config.computes_action_values and prepared.values:
            distance = self._mean(["distance"], mine, answers, prepared.known)
            measured["q/teacher_error"] = student.sums(distance, prepared.known)
        return Added(self.cost(reduced.dtype) * reduced, measured)

    def _compared(
        self, student: Student, taught: Taught
    ) -> tuple[teacher_losses.Compared, list[teacher_losses.Compared]]:
        """Return the student and its teachers, whose values are in the unit that it learns."""
        unit = student.unit

        values = student.values
        if tf.is_tensor(values):  # else: it computes none
            values = values / tf.cast(unit, values.dtype)
        mine = teacher_losses.Compared(student.policy, values, student.allowed)

        def in_unit(values: tf.Tensor) -> tf.Tensor:
            learnt = student.as_learnt(values)
            return tf.cast(learnt / tf.cast(unit, learnt.dtype), student.values.dtype)

        answers = [
            teacher_losses.Compared(student.make(parameters), None if x is None else in_unit(x))
            for parameters, x in zip_longest(taught.parameters, taught.values)
        ]
        return mine, answers

    def _mean(
        self,
        names: Sequence[str],
        mine: teacher_losses.Compared,
        answers: Sequence[teacher_losses.Compared],
        known: tf.Tensor,
    ) -> tf.Tensor:
        """Return these losses, on average over the teachers, [T, N]; 0 where not `known`."""
        kinds: dict[str, Callable[..., tf.Tensor]] = {
            "policy": teacher_losses.policy,
            "value": teacher_losses.value,
            "distance": teacher_losses.distance,
            "best_action": teacher_losses.best_action,
            "margin": functools.partial(teacher_losses.margin, size=self.config.teacher_margin),
        }
        each = [kinds[name](mine, one) for name in names for one in answers]
        return tf.where(known, tf.add_n(each) / len(answers), 0.0)

    def after(
        self, measured: Mapping[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Return the mean of what --distill names: NaN once the teachers compute nothing."""
        means = {key: mean(x) for key, x in measured.items()}
        return {key: tf.where(self._share > 0, x, float("nan")) for key, x in means.items()}

    def cost(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Return the weight of `terms` in the loss of this update."""
        return self.config.full_teacher_cost * tf.cast(self._share.read_value(), dtype)

    def learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate of this update, for the one that its schedule gives."""
        if not self.config.teacher_rate:
            return rate
        share = self._share.read_value()
        return share * self.config.teacher_rate + (1.0 - share) * rate


def _with_earlier(entries: Entry, earlier: Any) -> Entry:
    """Return entries [T+1, B, ...] behind others of which only the observations are known."""

    def preceded(x: tf.Tensor) -> tf.Tensor:
        before = tf.zeros_like(x[:1])
        return tf.concat([before] * earlier.shape[0] + [x], 0)

    rest = tf.nest.map_structure(preceded, entries._replace(observation=(), extras=()))
    return rest._replace(observation=tf.concat([earlier, entries.observation], 0))
