"""Operations of TensorFlow that NumPy does not have, as NumPy computes them.

Only NumPy is imported: a policy that is exported for NumPy contains this file's text.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # a NumPy array, or a number of NumPy


# -- activations


def elu(x: Array) -> Array:
    """Return x where it is positive, and exp(x) - 1 elsewhere."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def erf(x: Array) -> Array:
    """Return the error function."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype)


def erfc(x: Array) -> Array:
    """Return 1 minus the error function."""
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(x), x.dtype)


def relu(x: Array) -> Array:
    """Return x where it is positive, and 0 elsewhere."""
    return np.maximum(x, 0)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-np.maximum(x, -80)))  # exp(80) does not overflow in float32


def softmax(x: Array) -> Array:
    """Return the probabilities that have these logits along the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return np.logaddexp(x, 0)


# -- arithmetic


def rsqrt(x: Array) -> Array:
    """Return 1 / sqrt(x)."""
    return 1 / np.sqrt(x)


def squared_difference(x: Array, y: Array) -> Array:
    """Return (x - y)^2."""
    return np.square(x - y)


def cast(x: Array, dtype: Any) -> Array:
    """Return the numbers as another type."""
    return x.astype(dtype)


def bitcast(x: Array, dtype: Any, shape: Sequence[int]) -> Array:
    """Return the bytes of numbers as numbers of another type and shape."""
    return np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(shape)


def matmul(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Array:
    """Return products of matrices, of which some are transposed before."""
    return np.matmul(x.mT if transpose_x else x, y.mT if transpose_y else y)


def arg_max(x: Array, axis: int, dtype: Any) -> Array:
    """Return the place of the largest number along an axis."""
    return x.argmax(axis).astype(dtype)


# -- layers of images [N, height, width, channels]


def conv2d(image: Array, kernel: Array, strides: Sequence[int], same: bool) -> Array:
    """Return the convolution with a kernel [height, width, channels, channels of the output].

    With `same`, the output has ceil(size / stride) pixels in height and width, since zeros surround
    the image (SAME); else the kernel stays within the image (VALID).
    """
    seen = _windows(image, kernel.shape[:2], strides, same, 0)  # [N, H, W, C, kh, kw]
    columns = seen.transpose(0, 1, 2, 4, 5, 3).reshape(-1, math.prod(kernel.shape[:3]))
    product = columns @ kernel.reshape(-1, kernel.shape[3])
    return product.reshape(*seen.shape[:3], kernel.shape[3])


def max_pool2d(image: Array, size: Sequence[int], strides: Sequence[int], same: bool) -> Array:
    """Return the largest number in each window of this size; `same` as for `conv2d`."""
    return _windows(image, size, strides, same, -np.inf).max((4, 5))


def avg_pool2d(image: Array, size: Sequence[int], strides: Sequence[int], same: bool) -> Array:
    """Return the mean of each window of this size; `same` as for `conv2d`.

    What surrounds the image is not counted.
    """
    total = _windows(image, size, strides, same, 0).sum((4, 5))
    return total / _windows(np.ones_like(image), size, strides, same, 0).sum((4, 5))


def _windows(
    image: Array, size: Sequence[int], strides: Sequence[int], same: bool, border: float
) -> Array:
    """Return the windows of an image that a kernel of this size sees, [N, H, W, C, *size]."""
    if same:
        pads = [(0, 0)]
        for pixels, kernel, stride in zip(image.shape[1:3], size, strides, strict=True):
            missing = max((-(-pixels // stride) - 1) * stride + kernel - pixels, 0)
            pads.append((missing // 2, missing - missing // 2))
        image = np.pad(image, [*pads, (0, 0)], constant_values=border)
    windows = np.lib.stride_tricks.sliding_window_view(image, tuple(size), axis=(1, 2))
    return windows[:, :: strides[0], :: strides[1]]


# -- shapes and parts


def shape_of(x: Array, dtype: Any) -> Array:
    """Return the sizes of the axes."""
    return np.array(x.shape, dtype)


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Return an array of another shape."""
    return x.reshape(shape)


def filled(value: Array, shape: Sequence[int]) -> Array:
    """Return an array of this shape whose numbers are all equal."""
    return np.full(shape, value)


def concat(*parts: Array, axis: int) -> Array:
    """Return arrays joined along an axis."""
    return np.concatenate(parts, axis)


def stack(*parts: Array, axis: int) -> Array:
    """Return arrays joined along a new axis."""
    return np.stack(parts, axis)


def split(x: Array, parts: Sequence[Any]) -> list[Array]:
    """Return parts of an array, an index for each."""
    return [x[part] for part in parts]


def part(x: Array, index: Any) -> Array:
    """Return a part of an array."""
    return x[index]


def rows(table: Array, numbers: Array) -> Array:
    """Return rows of a table."""
    return table[numbers]


def of_each(table: Array, numbers: Array) -> Array:
    """Return from each row of a table [N, K, ...] what its number names, one of [N]."""
    return table[np.arange(len(numbers)), numbers]


def one_hot(numbers: Array, depth: Any, on: Array, off: Array) -> Array:
    """Return a vector of `depth` numbers for each number: `on` at its place, `off` elsewhere."""
    return np.where(numbers[..., None] == np.arange(depth), on, off)


def choose(condition: Any, when_true: Array, when_false: Array) -> Array:
    """Return one of two arrays."""
    return when_true if condition else when_false


# -- random numbers


def normal(shape: Any, random: np.random.Generator, dtype: Any) -> Array:
    """Return random numbers of mean 0 and deviation 1."""
    return random.standard_normal(tuple(shape), dtype)


def uniform(shape: Any, random: np.random.Generator, dtype: Any) -> Array:
    """Return random numbers from 0 to 1."""
    return random.random(tuple(shape), dtype)


def uniform_int(
    shape: Any, low: Array, high: Array, random: np.random.Generator, dtype: Any
) -> Array:
    """Return random whole numbers from `low` to `high` - 1."""
    return random.integers(low, high, tuple(shape), dtype)


def categorical(logits: Array, draws: Any, random: np.random.Generator, dtype: Any) -> Array:
    """Return choices [N, draws] for logits [N, A], the largest ones after Gumbel noise is added."""
    noise = random.gumbel(size=(len(logits), int(draws), logits.shape[1]))
    return (logits[:, None] + noise).argmax(-1).astype(dtype)
