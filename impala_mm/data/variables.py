"""An algorithm's variables, grouped by how they are used."""

from typing import NamedTuple

import tensorflow as tf


class Variables(NamedTuple):
    """The variables of an algorithm; all are broadcast at the start and checkpointed."""

    trained: list[tf.Variable]  # the weights that gradients change
    # Everything else: target networks, normalisers, temperatures, optimizer slots, and the state of
    # a tf.random.Generator.
    carried: list[tf.Variable]
    acting: list[tf.Variable]  # those of the trained and carried variables that actors receive
