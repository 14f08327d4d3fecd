"""Convolutions and one linear layer, for images: the networks of DQN's two papers and variants."""

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from nets.noisy import linear

# After four passes over recorded Pong, read as bytes / 255, the value's correlation with the return
# was 0.5 with this initialisation and 0.1 to 0.2 with Sonnet's own. With Sonnet's, the difference
# between two pictures, a few pixels of thousands, became smaller from layer to layer.
_START = snt.initializers.Orthogonal(2**0.5)


class Layer(NamedTuple):
    """One convolution; kernel and stride are the same in height and width."""

    channels: int
    kernel: int  # pixels
    stride: int  # pixels


class Conv(snt.Module):
    """A torso [N, height, width, channels] -> [N, hidden], with a ReLU after each layer.

    A first layer of kernel 8 and stride 4 equals a layer of kernel 2 and stride 1 over tiles of 4x4
    pixels, with the same weights in another order. So `arrange` cuts frames into tiles: stacking
    frames then copies runs of 16 bytes instead of single bytes, and the layer itself is faster.
    """

    def __init__(
        self, layers: list[Layer], hidden: int, padding: str = "VALID", noise_scale: float = 0.0
    ):
        super().__init__(name="conv")
        self._layers, self._padding = layers, padding
        first = layers[0]
        tiles = padding == "VALID" and first.kernel % first.stride == 0
        self._tile = first.stride if tiles else 1
        tiled = Layer(first.channels, first.kernel // self._tile, first.stride // self._tile)
        self._convolutions = [
            snt.Conv2D(layer.channels, layer.kernel, layer.stride, padding=padding, w_init=_START)
            for layer in [tiled, *layers[1:]]
        ]
        self._linear = linear(hidden, noise_scale, w_init=_START)

    @property
    def smallest(self) -> int:
        """The least height and width of an image for which the last layer's output is not empty."""
        if self._padding == "SAME":
            return 1
        size = 1
        for layer in reversed(self._layers):
            size = (size - 1) * layer.stride + layer.kernel
        return size

    def unsuitable(self, shape: tuple[int, ...]) -> str | None:
        """Return why the torso cannot read observations of this shape, or None if it can."""
        return not_an_image(shape, self.smallest)

    def arrange(self, image: tf.Tensor) -> tf.Tensor:
        """Return images [N, height, width, C] as tiles [N, height / t, width / t, t x t x C]."""
        tile = self._tile
        if tile == 1:
            return image
        height, width, channels = image.shape[1:]
        down, across = height // tile, width // tile  # no kernel reaches the rest
        image = image[:, : down * tile, : across * tile]
        tiles = tf.reshape(image, [-1, down, tile, across, tile * channels])
        if image.dtype == tf.uint8 and tile * channels == 4:
            # A row of a tile is copied faster as one number of 4 bytes.
            rows = tf.transpose(tf.bitcast(tiles, tf.int32), [0, 1, 3, 2])
            tiles = tf.bitcast(rows, tf.uint8)
        else:
            tiles = tf.transpose(tiles, [0, 1, 3, 2, 4])
        return tf.reshape(tiles, [-1, down, across, tile * tile * channels])

    def restore(self, arranged: tf.Tensor) -> tf.Tensor:
        """Return the images that `arrange` made tiles of, without what it has cut off."""
        tile = self._tile
        _, down, across, numbers = arranged.shape
        channels = numbers // tile**2
        tiles = tf.reshape(arranged, [-1, down, across, tile, tile, channels])
        image = tf.transpose(tiles, [0, 1, 3, 2, 4, 5])
        return tf.reshape(image, [-1, down * tile, across * tile, channels])

    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        """Return the features [N, hidden] of images that `arrange` returned."""
        for convolution in self._convolutions:
            image = tf.nn.relu(convolution(image))
        return tf.nn.relu(self._linear(snt.flatten(image)))


def simple(padding: str = "VALID", noise_scale: float = 0.0) -> Conv:
    """Return the network of DQN's second paper.

    With SAME padding it is that of this program's predecessor, which has over twice the weights.
    """
    return Conv([Layer(32, 8, 4), Layer(64, 4, 2), Layer(64, 3, 1)], 512, padding, noise_scale)


def shallow(noise_scale: float = 0.0) -> Conv:
    """Return the network of DQN's first paper, the shallow one of IMPALA's: cheap, for Atari."""
    return Conv([Layer(16, 8, 4), Layer(32, 4, 2)], 256, noise_scale=noise_scale)


def small(noise_scale: float = 0.0) -> Conv:
    """Return a network for images of fewer than 36 pixels, whose single pixels matter."""
    return Conv([Layer(16, 3, 1), Layer(32, 3, 2)], 128, "SAME", noise_scale)


def not_an_image(shape: tuple[int, ...], smallest: int) -> str | None:
    """Return why this is not the shape of images of at least `smallest` pixels; None if it is."""
    if len(shape) != 3:
        return "it reads images [height, width, channels]"
    if min(shape[:2]) < smallest:
        return f"it reads images of at least {smallest}x{smallest} pixels [height, width, channels]"
    return None
