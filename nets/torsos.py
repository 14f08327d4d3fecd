"""The torsos of networks: MLP, convolutions, ResNet and embedding, and those of nests, joined."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from nets.network import Rows, Torso, Unsuitable
from nets.noisy import NoisyLinear, linear

ACTIVATIONS = {
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "swish": tf.nn.swish,
}


class Style(NamedTuple):
    """The sizes and layers of a network, where it has such layers."""

    mlp_sizes: tuple[int, ...] = (64, 64)  # units of each layer, the first one first
    activation: str = "tanh"  # after each layer of an MLP: one of ACTIVATIONS
    layer_norm: bool = False  # before each activation of an MLP and of `Conv`
    # Scale of an MLP's initial weights, which are then orthogonal. 0: random numbers of the
    # deviation 1 / sqrt(inputs), truncated at two deviations.
    mlp_init_scale: float = 0.0
    lstm_size: int = 0  # units of an LSTM, GRU or GTrXL; 0: the network's own number
    # Initial noise of fully connected layers (see `noisy`); 0: they are not noisy.
    noise_scale: float = 0.0
    conv_factor: float = 1.0  # of the channels of each convolution
    dropout: float = 0.0  # share of an MLP's units that are left out, where a seed is given
    # Units of the layer after convolutions; 0: there is none; negative: the network's own number.
    conv_units: int = -1
    gtrxl_layers: int = 2
    gtrxl_heads: int = 4
    gtrxl_memory: int = 32  # entries to which each one attends, besides itself

    def channels(self, own: int) -> int:
        """Return the channels of a convolution that by itself has `own` ones."""
        return max(1, round(self.conv_factor * own))

    def after_convolutions(self, own: int, **options: Any) -> Any:
        """Return the layer after convolutions that has `own` units by itself; None for none."""
        units = own if self.conv_units < 0 else self.conv_units
        return linear(units, self.noise_scale, **options) if units else None

    def norms(self, layers: Sequence[Any]) -> list[snt.LayerNorm]:
        """Return what normalises each layer's outputs, over their last axis; [] for nothing."""
        return [snt.LayerNorm(-1, True, True) for _ in layers if self.layer_norm]


DEFAULT = Style()


class MLP(Torso):
    """A torso [N, ...] -> [N, D] of D units in the last layer; it can read any shape, flattened."""

    def __init__(self, style: Style = DEFAULT):
        super().__init__(name="mlp")
        scale = style.mlp_init_scale
        start = snt.initializers.Orthogonal(scale) if scale else None
        self._activation, self._dropout = ACTIVATIONS[style.activation], style.dropout
        self._layers: Any = snt.nets.MLP(
            style.mlp_sizes, w_init=start, activation=self._activation, activate_final=True
        )
        if noise := style.noise_scale:
            self._layers = snt.Sequential([NoisyLinear(size, noise) for size in style.mlp_sizes])
        self._norms = style.norms(style.mlp_sizes)

    def __call__(self, observation: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Return the features [N, D] of observations [N, ...].

        `seed`, int64 [2], draws the units that are left out; None: none is.
        """
        flat = tf.reshape(observation, [-1, observation.shape[1:].num_elements()])
        layers = self._layers.submodules
        norms = self._norms or [tf.identity] * len(layers)
        for i, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            flat = layer(flat)
            if self._dropout and seed is not None:
                flat = _leave_out(flat, self._dropout, tf.random.fold_in(seed, i))
            flat = self._activation(norm(flat))
        return flat


def _leave_out(units: tf.Tensor, share: float, seed: tf.Tensor) -> tf.Tensor:
    """Return units [N, D] of which this share is 0, drawn by a seed, int64 [2]; others are larger.

    Each unit's number is hashed with the seed, by the last steps of MurmurHash3: XLA does not end
    with `stateless_dropout`, and computes this together with the layers.
    """
    bits = tf.cast(tf.range(tf.size(units)), tf.uint32) * 0x9E3779B1
    first, second = tf.unstack(tf.cast(seed, tf.uint32))
    bits = _mixed(bits + first, 16) * 0x85EBCA6B
    bits = _mixed(bits + second, 13) * 0xC2B2AE35
    stays = tf.reshape(_mixed(bits, 16) >= round(share * 2**32), tf.shape(units))
    return tf.where(stays, units / (1 - share), 0.0)


def _mixed(bits: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, shift))


# After four passes over recorded Pong, read as bytes / 255, the value's correlation with the return
# was 0.5 with this initialisation and 0.1 to 0.2 with Sonnet's own. With Sonnet's, the difference
# between two pictures, a few pixels of thousands, became smaller from layer to layer.
_START = snt.initializers.Orthogonal(2**0.5)


class Layer(NamedTuple):
    """One convolution; kernel and stride are the same in height and width."""

    channels: int
    kernel: int  # pixels
    stride: int  # pixels


class Conv(Torso):
    """A torso [N, height, width, channels] -> [N, D], with a ReLU after each layer.

    A first layer of kernel 8 and stride 4 equals a layer of kernel 2 and stride 1 over tiles of 4x4
    pixels, with the same weights in another order. So `arrange` cuts frames into tiles: stacking
    frames then copies runs of 16 bytes instead of single bytes, and the layer itself is faster.
    """

    def __init__(
        self, layers: list[Layer], hidden: int, padding: str = "VALID", style: Style = DEFAULT
    ):
        """Make these convolutions and a layer of `hidden` units, if the style has no others."""
        super().__init__(name="conv")
        layers = [layer._replace(channels=style.channels(layer.channels)) for layer in layers]
        self._layers, self._padding = layers, padding
        first = layers[0]
        tiles = padding == "VALID" and first.kernel % first.stride == 0
        self._tile = first.stride if tiles else 1
        tiled = Layer(first.channels, first.kernel // self._tile, first.stride // self._tile)
        self._convolutions = [
            snt.Conv2D(layer.channels, layer.kernel, layer.stride, padding=padding, w_init=_START)
            for layer in [tiled, *layers[1:]]
        ]
        self._linear = style.after_convolutions(hidden, w_init=_START)
        self._norms = style.norms([*layers, *([self._linear] if self._linear else [])])

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
        """Return the features [N, D] of images that `arrange` returned."""
        norms = iter(self._norms)
        for convolution in self._convolutions:
            image = tf.nn.relu(next(norms, tf.identity)(convolution(image)))
        flat = snt.flatten(image)
        return tf.nn.relu(next(norms, tf.identity)(self._linear(flat))) if self._linear else flat


def not_an_image(shape: tuple[int, ...], smallest: int) -> str | None:
    """Return why this is not the shape of images of at least `smallest` pixels; None if it is."""
    if len(shape) != 3:
        return "it reads images [height, width, channels]"
    if min(shape[:2]) < smallest:
        return f"it reads images of at least {smallest}x{smallest} pixels [height, width, channels]"
    return None


class ResNet(Torso):
    """A torso [N, height, width, channels] -> [N, D], of three sections that halve the size."""

    def __init__(self, style: Style = DEFAULT):
        """Make the sections, and a layer of 256 units if the style has no others."""
        super().__init__(name="resnet")
        self._sections = [_Section(style.channels(own)) for own in (16, 32, 32)]
        self._linear = style.after_convolutions(256)

    def unsuitable(self, shape: tuple[int, ...]) -> str | None:
        """Return why the torso cannot read observations of this shape, or None if it can."""
        return not_an_image(shape, smallest=1)

    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        """Return the features [N, D] of images [N, height, width, channels]."""
        for section in self._sections:
            image = section(image)
        flat = snt.flatten(tf.nn.relu(image))
        return tf.nn.relu(self._linear(flat)) if self._linear else flat


class _Section(snt.Module):
    """A convolution, a max-pool of stride 2, and two residual blocks of two convolutions."""

    def __init__(self, channels: int):
        super().__init__(name="section")
        self._enter = snt.Conv2D(channels, 3)
        self._blocks = [[snt.Conv2D(channels, 3) for _ in range(2)] for _ in range(2)]

    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        image = tf.nn.max_pool2d(self._enter(image), ksize=3, strides=2, padding="SAME")
        for block in self._blocks:
            residual = image
            for convolution in block:
                residual = convolution(tf.nn.relu(residual))
            image += residual
        return image


class Embedding(snt.Module):
    """Features of K choices among many: [N, K] -> [N, size], the sum of a vector for each choice.

    They are what a linear layer would make of the choices' one-hot vectors, without these. A spec
    of an observation describes such choices if it has an attribute `choices`: the K numbers of
    choices of an int32 tensor [K].
    """

    def __init__(self, choices: Sequence[int], size: int):
        super().__init__(name="embedding")
        self._begins = np.cumsum([0, *choices[:-1]]).astype(np.int32)  # of each choice's rows
        start = snt.initializers.TruncatedNormal(stddev=len(choices) ** -0.5)  # of the sum: 1
        self._table = tf.Variable(start([sum(choices), size], tf.float32), name="table")

    def arrange(self, numbers: tf.Tensor) -> Rows:
        """Return numbers [N, K], each counted from 0, as the table's rows."""
        return Rows(tf.cast(numbers, tf.int32) + self._begins)

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the features [N, size] of rows [N, K]."""
        return tf.reduce_sum(_gather(tf.convert_to_tensor(self._table), rows), 1)


@tf.custom_gradient
def _gather(table: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return the rows of a table; the table's gradient is a dense tensor, as all others are."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        flat = tf.reshape(upstream, [-1, upstream.shape[-1]])
        indices = tf.reshape(rows, [-1])
        return tf.math.unsorted_segment_sum(flat, indices, table.shape[0]), None

    return tf.gather(table, rows), gradient


class Joined(Torso):
    """A torso for a nest of observations [N, ...]; its features are those of all parts, joined.

    image 1 ---------------- torso --.
    image 2 ---------------- torso --+- concat -- features
    all others ------------- MLP ----'
    choices - embedding -----'

    An MLP follows if there are images and choices among many: what the words of a sentence ask for
    depends on what is seen, and heads, which are linear, would only add the two.
    """

    def __init__(
        self,
        make_torso: Callable[[], Torso],
        observation: Any,
        name: str,
        style: Style = DEFAULT,
    ):
        """Read `observation`, a nest of specs; a torso that `make_torso` makes reads each image.

        Parts that this torso cannot read, and those that are no images, are joined to one vector,
        which an MLP of this style reads; choices among many are embedded before. Unsuitable is
        raised if the torso reads only images and there are none.
        """
        super().__init__(name="joined")
        leaves = tf.nest.flatten(observation)
        shapes = [leaf.shape.as_list() for leaf in leaves]
        reasons = [make_torso().unsuitable(tuple(shape)) for shape in shapes]
        reads_any = make_torso().unsuitable((1,)) is None
        self._images = [
            i
            for i, reason in enumerate(reasons)
            if reason is None and len(shapes[i]) == 3 and not reads_any
        ]
        if not self._images and not reads_any:
            raise Unsuitable(f"{name} does not fit observations of shapes {shapes}: {reasons[0]}")
        self._chosen = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "choices")]
        self._rest = [i for i in range(len(leaves)) if i not in self._images + self._chosen]
        self._torsos = [make_torso() for _ in self._images]
        rest = make_torso() if reads_any else MLP(style)
        self._vector = rest if self._rest or self._chosen else None
        choices = [n for i in self._chosen for n in leaves[i].choices]
        self._embedding = Embedding(choices, style.mlp_sizes[0]) if choices else None
        self._together = MLP(style) if choices and self._images else tf.identity

    def arrange(self, observation: Any) -> list[Any]:
        """Return the arranged images, then the vector of other parts, then the choices' rows."""
        leaves = tf.nest.flatten(observation)
        arranged = [
            torso.arrange(tf.convert_to_tensor(leaves[i]))
            for torso, i in zip(self._torsos, self._images, strict=True)
        ]
        if self._rest:
            arranged.append(tf.concat([_flat(leaves[i]) for i in self._rest], -1))
        if self._embedding:
            numbers = tf.concat([leaves[i] for i in self._chosen], -1)
            arranged.append(self._embedding.arrange(numbers))
        return arranged

    def __call__(self, arranged: list[tf.Tensor]) -> tf.Tensor:
        """Return the features [N, D]."""
        images, others = arranged[: len(self._images)], arranged[len(self._images) :]
        read = [torso(image) for torso, image in zip(self._torsos, images, strict=True)]
        if self._embedding:
            others[-1] = self._embedding(others[-1])
        if self._vector:
            read.append(self._vector(others[0] if len(others) == 1 else tf.concat(others, -1)))
        return self._together(read[0] if len(read) == 1 else tf.concat(read, -1))


def _flat(leaf: Any) -> tf.Tensor:
    """Return a part [N, ...] as numbers [N, D]; bytes are divided by 255."""
    leaf = tf.convert_to_tensor(leaf)
    numbers = tf.cast(tf.reshape(leaf, [-1, leaf.shape[1:].num_elements()]), tf.float32)
    return numbers / 255.0 if leaf.dtype == tf.uint8 else numbers
