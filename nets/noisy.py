"""Noisy layers: linear layers whose weights have noise of a trained size (arXiv 1706.10295).

    with noisy.noise(draw):                      without it, the layers have no noise
        features = network.step(...)

The noise of a layer of I inputs and O outputs is factorised: the product of I and O numbers. For
each layer, `draw(I, O)` returns them as [N, I] and [N, O], for each of N rows its own, or as [1, I]
and [1, O], the same for all rows. `squashed` makes them of normal random numbers.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import sonnet as snt
import tensorflow as tf

Draw = Callable[[int, int], tuple[tf.Tensor, tf.Tensor]]
_draw = contextvars.ContextVar[Draw | None]("the noise of noisy layers", default=None)


@contextlib.contextmanager
def noise(draw: Draw | None) -> Iterator[None]:
    """Let `draw` make the noise of all noisy layers within the context; None: they have none."""
    token = _draw.set(draw)
    try:
        yield
    finally:
        _draw.reset(token)


def squashed(normal: tf.Tensor) -> tf.Tensor:
    """Return sign(x) sqrt(|x|) of normal random numbers, factors of the weights' noise."""
    return tf.sign(normal) * tf.sqrt(tf.abs(normal))


class NoisyLinear(snt.Module):
    """A linear layer [N, ..., I] -> [N, ..., O] whose weights and biases have noise."""

    def __init__(self, output_size: int, scale: float, name: str = "noisy_linear"):
        """Begin with noise whose deviation is `scale` divided by the root of the inputs.

        It is trained as the weights are.
        """
        super().__init__(name=name)
        self._size, self._scale = output_size, scale

    @snt.once
    def _create(self, inputs: int, dtype: tf.DType) -> None:
        bound, shape = inputs**-0.5, [inputs, self._size]
        uniform = snt.initializers.RandomUniform(-bound, bound)
        deviation = snt.initializers.Constant(self._scale * bound)
        self.w = tf.Variable(uniform(shape, dtype), name="w")
        self.b = tf.Variable(uniform(shape[1:], dtype), name="b")
        self.noise_w = tf.Variable(deviation(shape, dtype), name="noise_w")
        self.noise_b = tf.Variable(deviation(shape[1:], dtype), name="noise_b")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return the outputs [N, ..., O] of inputs [N, ..., I], with the noise of the context."""
        self._create(x.shape[-1], x.dtype)
        outputs = _product(x, self.w) + self.b
        draw = _draw.get()
        if draw is None:
            return outputs
        axes = [tf.newaxis] * (x.shape.rank - 2)
        drawn = draw(x.shape[-1], self._size)
        of_inputs, of_outputs = (tf.cast(n, x.dtype)[(slice(None), *axes)] for n in drawn)
        # The same as a matrix of noise for each row, without making these.
        return outputs + (_product(x * of_inputs, self.noise_w) + self.noise_b) * of_outputs


def linear(output_size: int, scale: float, **options: Any) -> NoisyLinear | snt.Linear:
    """Return a noisy layer, or if `scale` is 0 Sonnet's layer with these options."""
    name = {name: options[name] for name in options if name == "name"}
    return NoisyLinear(output_size, scale, **name) if scale else snt.Linear(output_size, **options)


def _product(x: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """Return x [N, ..., I] times a matrix [I, O]; actors compute this by NumPy, too."""
    if x.shape.rank == 2:
        return x @ matrix
    rows = tf.reshape(x, [-1, x.shape[-1]]) @ matrix
    return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], tf.shape(rows)[1:]], 0))
