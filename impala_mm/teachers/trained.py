"""A teacher that is a trained policy of ours: of a run, one of its checkpoints, or an export."""

from typing import Any

import tensorflow as tf

from impala_mm.algorithms.interface import PolicyOutput
from impala_mm.data.trajectory import Entry
from impala_mm.policy.core import PolicyCore
from impala_mm.teachers.kinds import NoTeacher
from nets import State


class TrainedTeacher:
    """A policy with its network; that of a Q-learner is softmax(values / temperature)."""

    def __init__(self, name: str, policy: PolicyCore, temperature: float):
        """Raise NoTeacher if the policy's algorithm gives neither parameters nor values."""
        policy.check_teaches()
        self.name, self.notes = name, list[str]()
        self._policy, self._temperature = policy, temperature
        state = tf.nest.flatten(policy.initial_state(1))
        entry = policy.entry(
            tf.nest.map_structure(
                lambda s: tf.zeros([1, *s.shape], s.dtype), policy.spec.observation
            ),
            [0.0],
            policy.spec.actions.zeros(1),
            [True],
            tf.nest.map_structure(lambda s: tf.ones([1, *s.shape], s.dtype), policy.spec.masks),
        )
        judged = policy.judge(entry, policy.initial_state(1))
        self.greedy = judged.parameters is None
        if self.greedy and judged.values is None:
            raise NoTeacher(
                f"its --algorithm={policy.config.algorithm} computes neither the parameters of a "
                f"policy nor values of actions"
            )
        # Earlier frames are known, and the state of normalised rewards is no part of the policy.
        others = _count_frames(policy.initial_state(1)) + bool(policy.config.normalize_rewards)
        if len(state) > others:
            self.notes.append(
                f"the teacher {name} remembers earlier observations, and begins each unroll "
                f"without a memory: for the first entries it is another policy than the one that "
                f"was trained; a larger --unroll_length makes them fewer, but all are first ones "
                f"for a student that learns from single steps (SAC without a memory, --her_ratio)"
            )

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes."""
        return self._policy.initial_state(batch)

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""
        parameters = self._read(self._policy.judge(entry, state))
        return parameters, self._policy.next_state(entry, state)

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters [T+1, B, P] for entries [T+1, B, ...] of unrolls."""
        return self.judge(entries)[0]

    def judge(self, entries: Entry) -> tuple[tf.Tensor, tf.Tensor]:
        """Return these parameters, and the values [T+1, B] of the observations."""
        start = self.initial_state(tf.shape(entries.first)[1])
        judged = self._policy.judge_unroll(entries, start)
        return self._read(judged), tf.cast(judged.value, tf.float32)

    def _read(self, judged: PolicyOutput) -> tf.Tensor:
        """Return the parameters in what the policy's algorithm has judged."""
        if judged.parameters is not None:
            return tf.cast(judged.parameters, tf.float32)
        return tf.cast(judged.values, tf.float32) / self._temperature


def _count_frames(state: Any) -> int:
    """Return how many arrays of a nest of states hold earlier frames."""
    if isinstance(state, State):
        return len(tf.nest.flatten(state.frames))
    if isinstance(state, dict):
        state = tuple(state.values())
    return sum(map(_count_frames, state)) if isinstance(state, tuple | list) else 0
