"""A gated transformer with a memory of the last entries (GTrXL, arXiv 1910.06764).

    inputs - Linear - layer - ... - layer - features

    layer:  x -- norm -- attention -- ReLU -- gate ---- norm -- MLP -- ReLU -- gate -- x
            '-- memory --'            x ------'  '-------------------------------'

Each entry attends to itself and to the M entries before it, as far as they are of its episode. So
the state is what each layer read at the last M entries, and neither its size nor the features
depend on where an unroll begins. Gradients reach the entries of the unroll and not those before it.
Positions are relative, as in Transformer-XL (arXiv 1901.02860).
"""

import functools

import numpy as np
import sonnet as snt
import tensorflow as tf

from nets.lstm import restart
from nets.network import Unsuitable


class GTrXL(snt.Module):
    """A core of L layers of D units, whose state is float32 [B, M, L x D + 1].

    The state holds the inputs of all layers at each of the last M entries, the newest one last, and
    a 1. At an episode's start it is zeros, and zeros are attended to by no entry.
    """

    def __init__(self, width: int, layers: int = 2, heads: int = 4, memory: int = 32):
        """Create layers of `width` units, which attend with so many heads to so many entries."""
        super().__init__(name="gtrxl")
        if width % heads:
            raise Unsuitable(
                f"gtrxl_heads={heads} does not divide the width {width}: give another lstm_size, "
                f"which is the width, or gtrxl_heads"
            )
        self._memory, self._width = memory, width
        self._enter = snt.Linear(width, name="enter")
        self._layers = [_Layer(width, heads, memory) for _ in range(layers)]

    def initial_state(self, batch: int | tf.Tensor) -> tf.Tensor:
        """Return the state at an episode's start."""
        return tf.zeros([batch, self._memory, len(self._layers) * self._width + 1])

    def step(
        self, inputs: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (features [B, D], state) after reading inputs [B, I]; `first` is bool [B]."""
        before = restart(first[:, None, None], state)
        itself = tf.ones_like(first)[:, None]
        attended = tf.concat([before[:, :, -1] > 0.5, itself], 1)  # [B, M+1]
        return self._read(inputs, 1, before, attended[:, None])

    def unroll(
        self, inputs: tf.Tensor, first: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (features [T, B, D], last state) for inputs [T, B, I] and `first`, bool [T, B]."""
        memory, time = self._memory, first.shape[0] or tf.shape(first)[0]
        before = restart(first[0][:, None, None], state)
        episode = tf.cumsum(tf.cast(tf.transpose(first), tf.int32), 1)  # [B, T]
        kept = tf.where(before[:, :, -1] > 0.5, episode[:, :1], -1)  # [B, M]
        same = episode[:, :, None] == tf.concat([kept, episode], 1)[:, None]  # [B, T, M+T]
        back = tf.range(time)[:, None] + memory - tf.range(memory + time)  # [T, M+T]
        rows = tf.reshape(tf.transpose(inputs, [1, 0, 2]), [-1, inputs.shape[-1]])  # [B x T, I]
        features, after = self._read(rows, time, before, same & (back >= 0) & (back <= memory))
        return tf.transpose(tf.reshape(features, [-1, time, self._width]), [1, 0, 2]), after

    def _read(
        self, inputs: tf.Tensor, time: int | tf.Tensor, before: tf.Tensor, attended: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (features [B x T, D], state) after reading inputs [B x T, I].

        `attended` [B, T, M+T] tells which of the M entries before and of the T ones an entry
        attends to. `before` is the state.
        """
        x, read = self._enter(inputs), []
        memories = tf.split(tf.stop_gradient(before[:, :, :-1]), len(self._layers), -1)
        for layer, memory in zip(self._layers, memories, strict=True):
            read.append(x)
            x = layer(x, time, memory, attended[:, None])
        now = tf.concat([*read, tf.ones_like(x[:, :1])], -1)
        now = tf.reshape(now, [-1, time, before.shape[-1]])
        latest = tf.concat([before, now], 1)[:, -self._memory :]
        return x, tf.where(attended[:, -1, -self._memory :, None], latest, 0.0)


class _Layer(snt.Module):
    """Attention with heads of D / h units, then an MLP; gates join each to what it read."""

    def __init__(self, width: int, heads: int, memory: int):
        super().__init__(name="layer")
        self._heads, self._size = heads, width // heads
        linear = functools.partial(snt.Linear, width, with_bias=False)
        self._query, self._key, self._value = linear(name="q"), linear(name="k"), linear(name="v")
        self._distance, self._mixed = linear(name="distance"), linear(name="mixed")
        self._by_content, self._by_distance = snt.Bias(name="content"), snt.Bias(name="distance")
        self._mlp = snt.nets.MLP([4 * width, width])
        self._norms = [snt.LayerNorm(-1, True, True) for _ in range(2)]
        self._gates = [_Gate(width) for _ in range(2)]
        back = np.arange(memory, -1, -1)[:, None]  # entries back
        angles = back / 10_000 ** np.linspace(0, 1, max(width // 2, 1), endpoint=False)
        self._waves = np.concatenate([np.sin(angles), np.cos(angles)], 1)  # [M+1, D]

    def __call__(
        self, x: tf.Tensor, time: int | tf.Tensor, memory: tf.Tensor, attended: tf.Tensor
    ) -> tf.Tensor:
        """Return the outputs [B x T, D] for x [B x T, D], and earlier inputs [B, M, D].

        `attended` is bool [B, 1, T, M+T].
        """
        width = x.shape[-1]
        given = tf.concat([memory, tf.reshape(x, [-1, time, width])], 1)  # [B, M+T, D]
        given = self._norms[0](tf.reshape(given, [-1, width]))
        length = memory.shape[1] + time
        key, value = (self._by_head(f(given), length) for f in (self._key, self._value))
        query = self._query(self._norms[0](x))
        scores = tf.matmul(self._by_head(self._by_content(query), time), key, transpose_b=True)
        distance = self._distance(tf.cast(self._waves, x.dtype))[None]  # [1, M+1, D]
        distance = self._by_head(distance, self._waves.shape[0])[0]  # [h, M+1, D/h]
        places = self._by_head(self._by_distance(query), time)
        scores += _by_entry(tf.matmul(places, distance, transpose_b=True), scores, time)
        scores = tf.where(attended, scores * self._size**-0.5, -1e30)  # [B, h, T, M+T]
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
        x = self._gates[0](x, tf.nn.relu(self._mixed(tf.reshape(mixed, [-1, width]))))
        return self._gates[1](x, tf.nn.relu(self._mlp(self._norms[1](x))))

    def _by_head(self, rows: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
        """Return rows [B x length, D] as [B, h, length, D / h]."""
        return tf.transpose(tf.reshape(rows, [-1, length, self._heads, self._size]), [0, 2, 1, 3])


def _by_entry(scores: tf.Tensor, like: tf.Tensor, time: int | tf.Tensor) -> tf.Tensor:
    """Return scores of distances M to 0, [B, h, T, M+1], as scores of entries `like` [..., M+T].

    Row t moves t places to the right, and zeros stand at entries that are no such distance back.
    """
    heads, length = like.shape[1], scores.shape[-1] - 1 + time
    wide = tf.concat([scores, tf.zeros_like(like[..., :time])], -1)  # [B, h, T, M+T+1]
    flat = tf.reshape(wide, [-1, heads, time * (length + 1)])
    return tf.reshape(flat[:, :, : time * length], [-1, heads, time, length])


class _Gate(snt.Module):
    """A GRU's gates, by which a layer begins as nearly the identity: [N, D], [N, D] -> [N, D]."""

    def __init__(self, width: int):
        super().__init__(name="gate")
        self._read = snt.Linear(3 * width, with_bias=False, name="read")
        self._recall = snt.Linear(2 * width, with_bias=False, name="recall")
        self._candidate = snt.Linear(width, with_bias=False, name="candidate")
        self._bias = snt.Bias(b_init=snt.initializers.Constant(-2.0))

    def __call__(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Return x, changed by y."""
        of_y, of_x = tf.split(self._read(y), 3, -1), tf.split(self._recall(x), 2, -1)
        reset = tf.sigmoid(of_y[0] + of_x[0])
        update = tf.sigmoid(self._bias(of_y[1] + of_x[1]))
        return (1.0 - update) * x + update * tf.tanh(of_y[2] + self._candidate(reset * x))
