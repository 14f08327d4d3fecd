"""Dopamine's networks for Atari: their layers, and the values of actions that they compute.

    encoder, of stacks uint8 [N, 84, 84, 4]     head, of its features
        Nature: three convolutions                  a value of each action (DQN)
        Impala: stacks of residual blocks           logits of 51 returns from -10 to 10 (C51,
                                                      Rainbow), duelling and noisy, or neither
                                                    200 quantiles of each action (QR-DQN)
                                                    quantiles at any fractions (IQN)

A layer is named by the path of modules of flax, such as `encoder/Stack_0/Conv_1`. All convolutions
and poolings pad as TensorFlow's SAME does. Noise is for training: the mean weights act.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

_NATURE = ((8, 4), (4, 2), (3, 1))  # (side of the kernel, stride) of its convolutions, in pixels
_RETURNS, _LARGEST = 51, 10.0  # of C51 and Rainbow; the largest return is no part of a checkpoint
_QUANTILES = 200  # of QR-DQN
_FRACTIONS = 32  # at which IQN's quantiles are averaged; Dopamine draws as many at random
IN_WORDS = "the networks of DQN, C51, Rainbow, QR-DQN and IQN with the Nature or Impala encoder"

_CONVOLUTION = re.compile(r"(?:encoder/_?(?:S|s)tacks?_(\d+)/)?Conv_(\d+)")
_DENSE = re.compile(r"(?:Dense|NoisyNetwork)_(\d+)")


class Layer(NamedTuple):
    """The weights of one layer: arrays, or in a network variables."""

    kernel: Any  # float32 [height, width, in, out], or [in, out]
    bias: Any  # float32 [out]


class BadLayers(ValueError):
    """The layers are those of another network; the message says which of them is wrong."""


class Network:
    """A network that computes the values of actions."""

    def __init__(self, layers: Mapping[str, Layer]):
        """Take float32 layers by name; raise BadLayers if they are no network of Dopamine's."""
        parts, heads = dict[str, list[Layer]](), list[Layer]()
        for name in sorted(layers, key=_in_order):
            if found := _CONVOLUTION.fullmatch(name):
                parts.setdefault(found[1] or "", []).append(layers[name])
            elif _DENSE.fullmatch(name):
                heads.append(layers[name])
            else:
                raise BadLayers(f"has the layer {name[:80]}")
        stacks = list(parts.values())
        is_nature = list(parts) == [""]
        self._check_convolutions(stacks, is_nature)
        self._stacks = [_as_variables(stack) for stack in stacks]
        self._head = _as_variables(heads)
        self._is_nature = is_nature
        self.frames = stacks[0][0].kernel.shape[2]  # that are stacked
        self.notes = list[str]()
        self._kind = self._find_kind(heads)

    @staticmethod
    def _check_convolutions(stacks: Sequence[Sequence[Layer]], is_nature: bool) -> None:
        sides = [side for side, _ in _NATURE] if is_nature else []
        if not stacks or (is_nature and len(stacks[0]) != len(_NATURE)):
            raise BadLayers("has other convolutions")
        channels = stacks[0][0].kernel.shape[-2]
        for stack in stacks:
            if not is_nature and len(stack) % 2 == 0:  # one, and two in each block
                raise BadLayers(f"has {len(stack)} convolutions in a stack")
            for layer, side in zip(stack, sides or [3] * len(stack), strict=True):
                if layer.kernel.shape[:-1] != (side, side, channels):
                    raise BadLayers(
                        f"has a convolution {list(layer.kernel.shape)} where one of "
                        f"{side}x{side} pixels of {channels} channels would be"
                    )
                channels = layer.kernel.shape[-1]

    def _find_kind(self, heads: Sequence[Layer]) -> str:
        """Return the kind of head, and set the number of actions."""
        if len(heads) not in (2, 3) or any(layer.kernel.ndim != 2 for layer in heads):
            raise BadLayers(f"has {len(heads)} layers after its convolutions")
        (embedded, inputs), (hidden, width) = heads[0].kernel.shape, heads[1].kernel.shape
        if len(heads) == 3 and hidden == inputs and heads[2].kernel.shape[0] == width:
            # The first one embeds a fraction, and its outputs are multiplied with the features.
            self.features, self.num_actions = inputs, heads[2].kernel.shape[1]
            self.notes.append(
                f"is IQN's: its values are the means of {_FRACTIONS} quantiles, where Dopamine "
                f"draws as many at random"
            )
            return "fractions"
        self.features, outputs, kind = embedded, width, "values"
        if any(layer.kernel.shape[0] != inputs for layer in heads[1:]):
            raise BadLayers(f"has a layer of other inputs than the {inputs} outputs before it")
        if len(heads) == 3:  # of duelling: advantages and value
            returns = heads[2].kernel.shape[1]
            kind = "returns" if returns > 1 else "values"
        elif outputs % _RETURNS == 0:
            returns, kind = _RETURNS, "returns"
        elif outputs % _QUANTILES == 0:
            returns, kind = _QUANTILES, "quantiles"
        else:
            returns = 1
        if outputs % returns:
            raise BadLayers(f"has {outputs} advantages and a value of {returns} returns")
        self._returns, self.num_actions = returns, outputs // returns
        if kind == "returns":
            self.notes.append(
                f"is Rainbow's, and does not say which returns its {returns} probabilities are "
                f"of: they are taken as -{_LARGEST:g} to {_LARGEST:g}, as published"
            )
        return kind

    def count_features(self, height: int, width: int) -> int:
        """Return the number of features of an image of this size."""
        strides = [stride for _, stride in _NATURE] if self._is_nature else [2] * len(self._stacks)
        for stride in strides:
            height, width = -(-height // stride), -(-width // stride)
        return height * width * self._stacks[-1][-1].bias.shape[0]

    def values(self, images: tf.Tensor) -> tf.Tensor:
        """Return the values [N, A] of the actions, for stacks uint8 [N, height, width, C]."""
        x = tf.cast(images, tf.float32) / 255.0
        if self._is_nature:
            for (kernel, bias), (_, stride) in zip(self._stacks[0], _NATURE, strict=True):
                x = tf.nn.relu(tf.nn.conv2d(x, kernel, stride, "SAME") + bias)
        else:
            for stack in self._stacks:
                x = _residual(stack, x)
            x = tf.nn.relu(x)
        x = tf.reshape(x, [-1, self.features])
        if self._kind == "fractions":
            return self._mean_quantile(x)
        (kernel, bias), *outputs = self._head
        x = tf.nn.relu(x @ kernel + bias)
        logits, *value = (
            tf.reshape(x @ kernel + bias, [-1, actions, self._returns])
            for (kernel, bias), actions in zip(outputs, (self.num_actions, 1), strict=False)
        )
        if value:
            logits += value[0] - tf.reduce_mean(logits, 1, keepdims=True)
        if self._kind == "quantiles":
            return tf.reduce_mean(logits, -1)
        if self._kind == "values":
            return logits[..., 0]
        returns = tf.linspace(-_LARGEST, _LARGEST, self._returns)
        return tf.linalg.matvec(tf.nn.softmax(logits), returns)

    def _mean_quantile(self, features: tf.Tensor) -> tf.Tensor:
        """Return the mean of IQN's quantiles, at the middle of equal intervals of fractions."""
        (embedding, embedding_bias), (hidden, hidden_bias), (output, output_bias) = self._head
        fractions = (tf.range(_FRACTIONS, dtype=tf.float32)[:, tf.newaxis] + 0.5) / _FRACTIONS
        waves = tf.range(1, embedding.shape[0] + 1, dtype=tf.float32)
        embedded = tf.nn.relu(tf.cos(math.pi * waves * fractions) @ embedding + embedding_bias)
        # One after the other, since features for each of them would take gigabytes.
        read = [
            tf.nn.relu((features * each) @ hidden + hidden_bias) for each in tf.unstack(embedded)
        ]
        return tf.add_n(read) / _FRACTIONS @ output + output_bias


def _residual(stack: Sequence[Layer], x: tf.Tensor) -> tf.Tensor:
    """Return a stack of Impala's encoder for images: a convolution, pooling, residual blocks."""
    (kernel, bias), *blocks = stack
    x = tf.nn.max_pool2d(tf.nn.conv2d(x, kernel, 1, "SAME") + bias, 3, 2, "SAME")
    for one, other in zip(blocks[::2], blocks[1::2], strict=True):
        y = x
        for kernel, bias in (one, other):
            y = tf.nn.conv2d(tf.nn.relu(y), kernel, 1, "SAME") + bias
        x = x + y
    return x


def _in_order(name: str) -> list[tuple[str, int]]:
    """Return a key by which the layers are in the order in which a network computes them."""
    return [
        (
            part.rstrip("0123456789"),
            int(number[0]) if (number := re.findall(r"\d{1,9}$", part)) else 0,
        )
        for part in name.split("/")
    ]


def _as_variables(layers: Sequence[Layer]) -> list[Layer]:
    return [
        Layer(*(tf.Variable(weights, trainable=False) for weights in layer)) for layer in layers
    ]
