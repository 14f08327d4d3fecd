"""Critics: values Q(o, a) of observations' features and of an action that is not chosen by them.

    features [..., F] ------------------------------.
    action, nest of [..., ...], as features [..., A] +- concat - MLP - Linear(1) -- values [...]

An action that a network samples may be read, too: the values' gradient reaches it. Critics of
choices need not read an action: they return the values of all choices at once.
"""

from typing import Any

import sonnet as snt
import tensorflow as tf

from nets.network import Actions
from nets.torsos import DEFAULT, MLP, Style


class Critics(snt.Module):
    """Several critics of the same features and actions, whose weights differ from the beginning."""

    def __init__(self, actions: Actions, num_features: int, count: int = 2, style: Style = DEFAULT):
        """Create `count` critics with the MLP of `style`, for features [N, num_features].

        `actions` describes the actions, such as `EnvironmentSpec.actions`: the numbers of a Box are
        read in the policy's units, and choices as one-hot vectors.
        """
        super().__init__(name="critics")
        self._actions = actions
        self._critics = [(MLP(style), snt.Linear(1)) for _ in range(count)]
        nothing = tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape], s.dtype), actions.specs)
        self(tf.zeros([1, num_features]), nothing)  # creates the variables

    def __call__(
        self, features: tf.Tensor, action: Any, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the values float32 [count, ...] of features [..., F] and actions, nest of [...].

        The leading axes [...] are any number, such as [N] or [T, B]. `seed` is that of `MLP`.
        """
        features = tf.convert_to_tensor(features)
        rows = tf.reshape(features, [-1, features.shape[-1]])
        action = tf.nest.map_structure(
            lambda spec, part: tf.reshape(part, [-1, *spec.shape]), self._actions.specs, action
        )
        never = tf.zeros(tf.shape(rows)[:1], tf.bool)
        read = tf.concat([rows, self._actions.features(action, never)], -1)
        values = []
        for i, (layers, layer) in enumerate(self._critics):
            drawn = None if seed is None else tf.random.fold_in(seed, i)
            values.append(_last(layer, layers(read, drawn)))
        values = tf.reshape(
            tf.stack(values), tf.concat([[len(self._critics)], tf.shape(features)[:-1]], 0)
        )
        return tf.ensure_shape(values, [len(self._critics), *features.shape[:-1]])


def _last(layer: snt.Linear, features: tf.Tensor) -> tf.Tensor:
    """Return the outputs [N] of a layer of one unit for features [N, F].

    Its weights are the row that is multiplied. XLA fuses the layer below into the gradient of a
    column, which then takes a processor's core as long as a third of a layer of 256 units.
    """
    if not hasattr(layer, "w"):
        layer(features)  # creates the variables
    row = tf.reshape(layer.w, [1, -1])
    return tf.squeeze(tf.matmul(row, features, transpose_b=True), 0) + layer.b


class ChoiceCritics(snt.Module):
    """Several critics that return the values of all choices, without reading an action."""

    def __init__(self, num_choices: int, num_features: int, count: int = 2, style: Style = DEFAULT):
        """Create `count` critics with the MLP of `style`, for features [N, num_features]."""
        super().__init__(name="critics")
        self._critics = [(MLP(style), snt.Linear(num_choices)) for _ in range(count)]
        self(tf.zeros([1, num_features]))  # creates the variables

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Return the values float32 [count, ..., A] of all A choices at features [..., F]."""
        features = tf.convert_to_tensor(features)
        rows = tf.reshape(features, [-1, features.shape[-1]])
        values = tf.stack([last(layers(rows)) for layers, last in self._critics])
        count, a = values.shape[0], values.shape[-1]
        values = tf.reshape(values, tf.concat([[count], tf.shape(features)[:-1], [a]], 0))
        return tf.ensure_shape(values, [count, *features.shape[:-1], a])
