"""An algorithm's variables, by what becomes of them."""

from typing import NamedTuple

import tensorflow as tf


class Variables(NamedTuple):
    """All of them are broadcast at the start and checkpointed."""

    trained: list[tf.Variable]  # what the gradients reach
    # Targets, normalisers, temperatures, optimizer slots; of a tf.random.Generator, its state.
    carried: list[tf.Variable]
    acting: list[tf.Variable]  # what actors receive; of the trained and carried ones
