"""A network whose features become the value of each action."""

from typing import Any

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import networks
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments.types import EnvironmentSpec


class QNetwork(snt.Module):
    """The values of all actions, with a recurrent core or without.

    With `duelling`, they are the sum of the observation's value and of the actions' advantages,
    whose mean is 0.
    """

    def __init__(self, config: Config, environment: EnvironmentSpec, duelling: bool):
        super().__init__(name="q_network")
        self._body, self._duelling = networks.make_network(config, environment), duelling
        self._advantages = snt.Linear(environment.num_actions, name="advantages")
        self._value = snt.Linear(1, name="value") if duelling else None
        self._head(tf.zeros([1, self._body.num_features]))  # creates the variables

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the network's state at the start of an episode: nest of [B, ...]."""
        return self._body.initial_state(batch)

    @property
    def remembers(self) -> bool:
        """Whether the values depend on earlier entries."""
        return bool(tf.nest.flatten(self._body.initial_state(1)))

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (values [B, A], state) after entries [B, ...]."""
        features, state = self._body.step(
            entry.observation, entry.reward, entry.action, entry.first, state
        )
        return self._head(features), state

    def unroll(self, entries: Entry, state: Any, burn_in: int = 0) -> tf.Tensor:
        """Return the values [T+1-burn_in, B, A] of all entries but those of the burn-in.

        The burn-in only fills the memory, and no gradient passes through it.
        """

        def read(part: slice, state: Any) -> tuple[tf.Tensor, Any]:
            e = tf.nest.map_structure(lambda x: x[part], entries)
            return self._body.unroll(e.observation, e.reward, e.action, e.first, state)

        if burn_in:
            state = tf.nest.map_structure(tf.stop_gradient, read(slice(burn_in), state)[1])
        return snt.BatchApply(self._head)(read(slice(burn_in, None), state)[0])

    def _head(self, features: tf.Tensor) -> tf.Tensor:
        """Return the values [N, A] for features [N, F]."""
        values = self._advantages(features)
        if self._value is None:
            return values
        return self._value(features) + values - tf.reduce_mean(values, -1, keepdims=True)
