"""Torsos of observations that are nests: each image is read by a torso of its own, the rest by one.

image 1 ---------------- torso --.
image 2 ---------------- torso --+- concat -- features
all others ------------- MLP ----'
choices - embedding -----'
"""

from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf

from nets.embedding import Embedding
from nets.errors import Unsuitable
from nets.mlp import MLP
from nets.style import DEFAULT, Style


class Joined(snt.Module):
    """A torso for a nest of observations [N, ...]; its features are those of all parts, joined."""

    def __init__(
        self,
        make_torso: Callable[[], Any],
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
        reads_any = make_torso().unsuitable((1,)) is None
        self._images = [
            i
            for i, leaf in enumerate(leaves)
            if leaf.shape.rank == 3 and make_torso().unsuitable(tuple(leaf.shape.as_list())) is None
        ]
        if reads_any:
            self._images = []
        elif not self._images:
            reason = make_torso().unsuitable(tuple(leaves[0].shape.as_list()))
            shapes = [leaf.shape.as_list() for leaf in leaves]
            raise Unsuitable(f"{name} does not fit observations of shapes {shapes}: {reason}")
        self._chosen = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "choices")]
        self._rest = [i for i in range(len(leaves)) if i not in self._images + self._chosen]
        self._torsos = [make_torso() for _ in self._images]
        rest = make_torso() if reads_any else MLP(style)
        self._vector = rest if self._rest or self._chosen else None
        choices = [n for i in self._chosen for n in leaves[i].choices]
        self._embedding = Embedding(choices, style.mlp_sizes[0]) if choices else None

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
        return read[0] if len(read) == 1 else tf.concat(read, -1)


def _flat(leaf: Any) -> tf.Tensor:
    """Return a part [N, ...] as numbers [N, D]; bytes are divided by 255."""
    leaf = tf.convert_to_tensor(leaf)
    numbers = tf.cast(tf.reshape(leaf, [-1, leaf.shape[1:].num_elements()]), tf.float32)
    return numbers / 255.0 if leaf.dtype == tf.uint8 else numbers
