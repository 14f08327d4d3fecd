"""The deep residual torso of IMPALA's paper, for images."""

import sonnet as snt
import tensorflow as tf

from nets.conv import not_an_image
from nets.noisy import linear


class ResNet(snt.Module):
    """A torso [N, height, width, channels] -> [N, 256], of three sections that halve the size."""

    def __init__(self, noise_scale: float = 0.0):
        super().__init__(name="resnet")
        self._sections = [_Section(channels) for channels in (16, 32, 32)]
        self._linear = linear(256, noise_scale)

    def unsuitable(self, shape: tuple[int, ...]) -> str | None:
        """Return why the torso cannot read observations of this shape, or None if it can."""
        return not_an_image(shape, smallest=1)

    def arrange(self, image: tf.Tensor) -> tf.Tensor:
        """Return the images as they are."""
        return image

    def restore(self, arranged: tf.Tensor) -> tf.Tensor:
        """Return the images as they are."""
        return arranged

    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        """Return the features [N, 256] of images [N, height, width, channels]."""
        for section in self._sections:
            image = section(image)
        return tf.nn.relu(self._linear(snt.flatten(tf.nn.relu(image))))


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
