"""A trained agent, from a run's folder: what evaluation, export and videos play with.

policy = impala_mm.load_policy("runs/CartPole-v1-impala-20261122-101500")
policy.reset()                                  at the start of each episode
action = policy(observation)                    then with the reward of the action before, too
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm import agreement, checkpoint
from impala_mm.algorithms import Judgement
from impala_mm.config import Config
from impala_mm.trajectory import Entry


class Policy:
    """Acts in one environment when called; `act` and `judge` take batches."""

    def __init__(self, path: Path, about: checkpoint.About, level_name: str = ""):
        """Of the checkpoint at `path`; for another level that its network fits, if one is named."""
        self.path, self.about = path, about
        self.config = settings(about.settings, level_name)
        made = agreement.make(self.config, number=0)
        self.algorithm, self.levels, self.spec = made.algorithm, made.levels, made.spec
        checkpoint.load(path, checkpoint.named(self.algorithm.variables, weights=True))
        self._act = tf.function(self.algorithm.act, autograph=False)
        self._judge = tf.function(self.algorithm.judge, autograph=False)
        self.reset()

    def reset(self) -> None:
        """An episode begins with the next call."""
        self._state, self._first, self._action = self.initial_state(1), True, 0

    def __call__(self, observation: Any, reward: float = 0.0, explore: bool = False) -> int:
        """The action after this observation; `reward` is what the action before it brought.

        The most likely one, or, with `explore`, drawn as in training.
        """
        shape, dtype = self.spec.observation.shape, self.spec.observation.dtype.as_numpy_dtype
        seen = np.asarray(observation, dtype)
        if seen.shape != tuple(shape):
            raise ValueError(f"an observation of shape {list(seen.shape)} where {shape} is due")
        entry = self.entry(seen[None], [reward], [self._action], [self._first])
        actions, self._state, _ = self.act(entry, self._state, explore)
        self._action, self._first = int(actions[0]), False
        return self._action

    def initial_state(self, batch: int) -> Any:
        """What the network remembers when `batch` episodes begin."""
        return self.algorithm.initial_state(batch)

    def act(self, entry: Entry, state: Any, explore: bool) -> tuple[np.ndarray, Any, Any]:
        """(actions int32 [B], state, extras) after entries [B, ...]."""
        exploration = tf.fill(tf.shape(entry.first), 1.0 if explore else 0.0)
        actions, state, extras = self._act(entry, state, exploration)
        return actions.numpy(), state, extras

    def judge(self, entry: Entry, state: Any) -> Judgement:
        """What it thinks after entries [B, ...], from the state before them."""
        return self._judge(entry, state)

    def entry(self, observation: Any, reward: Any, action: Any, first: Any) -> Entry:
        """Entries [B, ...] of what may be read of one."""
        return Entry(
            action=tf.constant(action, tf.int32),
            reward=tf.constant(reward, tf.float32),
            terminated=None,
            truncated=None,
            observation=tf.constant(observation, self.spec.observation.dtype),
            first=tf.constant(first, tf.bool),
            extras=None,
        )


def load_policy(logdir: str | Path, best: bool = False, level_name: str = "") -> Policy:
    """Of a run's folder, its newest checkpoint or its best; or of a checkpoint's own folder.

    Raises checkpoint.Missing, Damaged or Mismatch.
    """
    return Policy(*checkpoint.find(logdir, best), level_name)


def settings(recorded: dict[str, Any], level_name: str = "") -> Config:
    """A run's flags as they were recorded, as far as they concern who plays: on this CPU."""
    known = {f.name for f in dataclasses.fields(Config)}
    kept = {name: value for name, value in recorded.items() if name in known}
    config = dataclasses.replace(Config(**kept), precision="float32")
    return dataclasses.replace(config, level_name=level_name) if level_name else config
