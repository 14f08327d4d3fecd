"""Plain convolutions and one linear layer, for images: those of DQN's two papers and their kin."""

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

# After four readings of recorded Pong, as bytes / 255, the value's correlation with the reward
# ahead was 0.5 with this start and 0.1 to 0.2 with Sonnet's own: what differs between two pictures,
# a few pixels of thousands, faded there from layer to layer.
_START = snt.initializers.Orthogonal(2**0.5)


class Layer(NamedTuple):
    """One convolution, as square as they all are."""

    channels: int
    kernel: int
    stride: int


class Conv(snt.Module):
    """[N, height, width, channels] -> [N, hidden]; a ReLU after each layer.

    A first layer of kernel 8 and stride 4 is a layer of kernel 2 and stride 1 over tiles of 4x4
    pixels, with the same weights in another order. So `arrange` cuts frames into tiles: stacking
    them then copies runs of 16 bytes instead of single ones, and the layer itself is cheaper.
    """

    def __init__(self, layers: list[Layer], hidden: int, padding: str = "VALID"):
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
        self._linear = snt.Linear(hidden, w_init=_START)

    @property
    def smallest(self) -> int:
        """The least height and width of an image that leaves something after the last layer."""
        if self._padding == "SAME":
            return 1
        size = 1
        for layer in reversed(self._layers):
            size = (size - 1) * layer.stride + layer.kernel
        return size

    def unsuitable(self, shape: tuple[int, ...]) -> str | None:
        """Why it cannot read observations of this shape."""
        return not_an_image(shape, self.smallest)

    def arrange(self, image: tf.Tensor) -> tf.Tensor:
        """[N, height, width, C] as tiles, [N, height / t, width / t, t x t x C]."""
        tile = self._tile
        if tile == 1:
            return image
        height, width, channels = image.shape[1:]
        down, across = height // tile, width // tile  # what is left over, no kernel reaches
        image = image[:, : down * tile, : across * tile]
        tiles = tf.reshape(image, [-1, down, tile, across, tile * channels])
        if image.dtype == tf.uint8 and tile * channels == 4:
            # A row of a tile moves faster as one number.
            rows = tf.transpose(tf.bitcast(tiles, tf.int32), [0, 1, 3, 2])
            tiles = tf.bitcast(rows, tf.uint8)
        else:
            tiles = tf.transpose(tiles, [0, 1, 3, 2, 4])
        return tf.reshape(tiles, [-1, down, across, tile * tile * channels])

    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        """Features of each image by itself, as `arrange` laid it out."""
        for convolution in self._convolutions:
            image = tf.nn.relu(convolution(image))
        return tf.nn.relu(self._linear(snt.flatten(image)))


def simple(padding: str = "VALID") -> Conv:
    """DQN's later network; with SAME padding the predecessor's, of more than twice the weights."""
    return Conv([Layer(32, 8, 4), Layer(64, 4, 2), Layer(64, 3, 1)], 512, padding)


def shallow() -> Conv:
    """DQN's first network, the shallow one of IMPALA's paper: the cheapest that plays Atari."""
    return Conv([Layer(16, 8, 4), Layer(32, 4, 2)], 256)


def not_an_image(shape: tuple[int, ...], smallest: int) -> str | None:
    """Why observations of this shape are no images of at least smallest x smallest pixels."""
    if len(shape) != 3:
        return "it reads images [height, width, channels]"
    if min(shape[:2]) < smallest:
        return f"it reads images of at least {smallest}x{smallest} pixels [height, width, channels]"
    return None
