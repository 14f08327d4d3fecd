"""A network whose features become the value of each action, or the distribution of its returns."""

from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import networks
from impala_mm.algorithms.q_learning import value_distributions
from impala_mm.algorithms.q_learning.draws import Draws
from impala_mm.algorithms.q_learning.settings import ActionValueSettings
from impala_mm.data.trajectory import Entry
from impala_mm.environments.types import EnvironmentSpec
from nets import noisy

_COSINES = 64  # of a level of probability, of which its features are computed


class ActionValues(NamedTuple):
    """The outputs of a Q-network for entries [...]."""

    mean: tf.Tensor  # [..., A]: the actions' values
    numbers: tf.Tensor  # [..., A, N]: of which `value_distributions` makes distributions
    levels: Any  # [..., N]: those of the quantiles; () for other kinds


class QNetwork(snt.Module):
    """The values of all actions, with a recurrent core or without.

    With --duelling, the numbers of an action are the sum of the observation's and of the action's
    own, whose mean over the actions is 0; --duelling_units gives both a hidden layer. With --noisy,
    the layers that are fully connected have noise (`nets.noisy`). `mean` is the algorithm's
    `Normaliser.mean`, and `network` the name of the network, if it is not --agent_name.
    """

    def __init__(
        self,
        config: ActionValueSettings,
        environment: EnvironmentSpec,
        mean: Any = None,
        network: str = "",
    ):
        super().__init__(name="q_network")
        self._config, self.num_actions = config, environment.num_actions
        self._body = networks.make_network(config, environment, mean, config.noise_scale, network)
        self._make_head(self._body.num_features, tf.float32)

    def _make_head(self, num_features: int, dtype: tf.DType) -> None:
        """Make the layers after the features, and create their variables."""
        config, noise = self._config, self._config.noise_scale
        self.distribution = value_distributions.make(config)
        self._has_levels = config.value_distribution == "quantiles"
        self._size = config.num_atoms if config.value_distribution == "categorical" else 1
        self._advantages = noisy.linear(self.num_actions * self._size, noise, name="advantages")
        self._value = noisy.linear(self._size, noise, name="value") if config.duelling else None
        self._hidden = [
            noisy.linear(config.duelling_units, noise, name=f"{part}_hidden")
            for part in ("advantages", "value")
            if config.duelling and config.duelling_units
        ]
        self._of_levels = snt.Linear(num_features, name="levels") if self._has_levels else None
        nothing = tf.zeros([1, num_features], dtype)
        self._head(nothing, tf.zeros([1, 1], dtype) if self._has_levels else ())

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the network's state at the start of an episode: nest of [B, ...]."""
        return self._body.initial_state(batch)

    @property
    def short_memory(self) -> str:
        """What it remembers of earlier entries, in words; empty if it has a recurrent core."""
        state = self._body.initial_state(1)
        if tf.nest.flatten(state.core):
            return ""
        return "nothing but stacked frames" if tf.nest.flatten(state) else "nothing"

    def state_after(self, entries: Entry) -> Any:
        """Return the state after the frames of entries [N, B, ...] (`nets.Network`)."""
        return self._body.state_after(entries.observation, entries.first)

    def earlier_images(self, state: Any) -> Any:
        """Return the images before the next entry that a state holds (`nets.Network`)."""
        return self._body.earlier_images(state)

    def shift_images(
        self, entries: Entry, state: Any, offsets: tf.Tensor, most: int
    ) -> tuple[Entry, Any]:
        """Return entries [T+1, B, ...] and the state before them with shifted images.

        `offsets` int32 [B, 2] are those of the columns, from -most to most (`nets.shift`).
        """
        moved, state = self._body.shift_images(entries.observation, state, offsets, most)
        return entries._replace(observation=moved), state

    def step(self, entry: Entry, state: Any, draws: Draws) -> tuple[tf.Tensor, Any]:
        """Return (values [B, A], state) after entries [B, ...]."""
        with noisy.noise(draws.noise):
            features, state = self._body.step(
                entry.observation, entry.reward, entry.action, entry.first, state
            )
            levels = self._levels(features, draws, self._config.num_policy_quantiles)
            return self.distribution.mean(self._numbers(features, levels)), state

    def unroll(
        self, entries: Entry, state: Any, draws: Draws, num_quantiles: int, burn_in: int = 0
    ) -> ActionValues:
        """Return the outputs [T+1-burn_in, B, ...] for all entries but those of the burn-in.

        The burn-in only fills the memory, without noise, and no gradient passes through it.
        `num_quantiles` is N where the levels of quantiles are drawn.
        """

        def read(part: slice, state: Any) -> tuple[tf.Tensor, Any]:
            e = tf.nest.map_structure(lambda x: x[part], entries)
            return self._body.unroll(e.observation, e.reward, e.action, e.first, state)

        if burn_in:
            state = tf.nest.map_structure(tf.stop_gradient, read(slice(burn_in), state)[1])
        with noisy.noise(draws.noise):
            features = read(slice(burn_in, None), state)[0]
            if not self._has_levels:
                numbers = self._numbers(features, ())
                return ActionValues(self.distribution.mean(numbers), numbers, ())
            # Together, so that both have the same noise.
            counts = [num_quantiles, self._config.num_policy_quantiles]
            each = [self._levels(features, draws, count) for count in counts]
            numbers, judging = tf.split(self._numbers(features, tf.concat(each, -1)), counts, -1)
            return ActionValues(self.distribution.mean(judging), numbers, each[0])

    def _levels(self, features: tf.Tensor, draws: Draws, count: int) -> Any:
        """Return `count` levels for each of the features [..., F]; () if there are none."""
        if not self._has_levels:
            return ()
        return tf.cast(draws.levels(features[..., 0], count), features.dtype)

    def _numbers(self, features: tf.Tensor, levels: Any) -> tf.Tensor:
        """Return the numbers [..., A, N] for features [..., F] and levels [..., N]."""
        if features.shape.rank == 2:
            return self._head(features, levels)
        return snt.BatchApply(self._head)(features, levels)

    def _head(self, features: tf.Tensor, levels: Any) -> tf.Tensor:
        """Return the numbers [R, A, N] for features [R, F] and levels [R, N]."""
        read = features
        if self._of_levels:
            read = features[:, tf.newaxis] * self._features_of(levels)
        hidden = [tf.nn.relu(_apply(layer, read)) for layer in self._hidden] or [read, read]
        numbers = self._arrange(_apply(self._advantages, hidden[0]), self.num_actions)
        if self._value is None:
            return numbers
        value = self._arrange(_apply(self._value, hidden[1]), 1)
        return value + numbers - tf.reduce_mean(numbers, 1, keepdims=True)

    def _arrange(self, outputs: tf.Tensor, rows: int) -> tf.Tensor:
        """Return a layer's outputs as [R, rows, N]; they are [R, rows x N] or [R, N, rows]."""
        if self._of_levels:
            return tf.transpose(outputs, [0, 2, 1])
        return tf.reshape(outputs, [-1, rows, self._size])

    def _features_of(self, levels: tf.Tensor) -> tf.Tensor:
        """Return the features [R, N, F] of levels [R, N], from cosines of their multiples."""
        multiples = tf.constant(np.pi * np.arange(_COSINES), levels.dtype)
        return tf.nn.relu(_apply(self._of_levels, tf.cos(levels[..., tf.newaxis] * multiples)))


def _apply(layer: Any, x: tf.Tensor) -> tf.Tensor:
    """Return a layer's outputs [..., O] for inputs [..., I] of two or three axes."""
    batched = x.shape.rank == 3 and not isinstance(layer, noisy.NoisyLinear)
    return snt.BatchApply(layer)(x) if batched else layer(x)
