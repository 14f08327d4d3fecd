"""The types of what algorithms and their features are given and return.

Import them from `impala_mm.algorithms.interface`.
"""

import enum
from typing import Any, NamedTuple, Protocol, TypeAlias

import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry


class Role(enum.Enum):
    """The use that a process makes of an algorithm.

    Only a learner calls `update`: what `update` alone needs (optimizer slots, targets, replay,
    teachers) need not exist in the other roles. The trained variables and those for acting are the
    same, in the same order, in all roles.
    """

    LEARNER = "learner"
    ACTOR = "actor"
    INFERENCE = "inference"  # a learner's second copy, which acts for its actors
    EVALUATOR = "evaluator"  # tests, exports and `load_policy`


class EnvironmentNumber(NamedTuple):
    """The numbers of the environments for which `act` chooses actions.

    A number belongs to one environment of the run, also after its actor was restarted. In tests,
    evaluation and exports all have number 0 of 1.
    """

    number: tf.Tensor  # int32 [B]: from 0
    # int32 []: larger than all numbers. It is the number of environments in the run, if all
    # learners have equally many; it grows when actors join.
    count: tf.Tensor

    @classmethod
    def outside_of_a_run(cls, first: tf.Tensor) -> "EnvironmentNumber":
        """Return those of environments outside of a run, for `first` [B]: each is number 0 of 1."""
        return cls(tf.zeros_like(first, tf.int32), tf.constant(1))


class PolicyOutput(NamedTuple):
    """The outputs of an algorithm for the entries it just read, for evaluation and videos."""

    # float32 [B, A]: the probabilities of Discrete actions while exploring; for other actions
    # [B, P], the parameters of their distribution.
    policy: tf.Tensor
    value: tf.Tensor  # float32 [B]: expected sum of the discounted rewards that the loss uses
    # float32 [B, P]: the parameters of the distribution of the actions (logits, for Discrete ones),
    # from which a student computes its divergence; None if the algorithm has no distribution.
    parameters: tf.Tensor | None = None
    # float32 [B, A]: the value of each Discrete action, if the algorithm computes them.
    values: tf.Tensor | None = None


class LoadedPolicy(Protocol):
    """The policy of another run, such as a teacher, for an algorithm's updates."""

    config: Config  # the flags of that run
    flags_read: set[str]  # those of them that its algorithm has read

    def initial_state(self, batch: Any) -> Any:
        """Return the network's recurrent state at the start of `batch` episodes, a number."""

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""


class PolicyLoader(Protocol):
    """A function that loads policies, `impala_mm.load_policy`."""

    def __call__(self, logdir: str, *, level_name: str, as_teacher: bool = False) -> LoadedPolicy:
        """Return the policy of a run or checkpoint, for this level.

        Raises UserMistake if there is none, or if it does not fit the level; with `as_teacher`
        also if its algorithm has no `judge_unroll`.
        """


class Context(NamedTuple):
    """Inputs of an update besides its batch; equal on all ranks."""

    frames: tf.Tensor  # float32 []: environment frames that all learners together trained on
    total: tf.Tensor  # float32 []: environment frames at which the run ends
    # float32 []: mean raw return of the last 100 games, or of those of them that explored least
    # where environments explore differently (`Algorithm.explores_less_by_number`); NaN before.
    episode_return: tf.Tensor


# The results of an update: metrics by key, and priorities float32 [B] for the batch's source.
Updated: TypeAlias = tuple[dict[str, tf.Tensor], tf.Tensor]
