"""The spec of an observation's choices among many, which the network embeds."""

from typing import Any

import tensorflow as tf


class ChoiceSpec(tf.TensorSpec):
    """The spec of the numbers of K choices, int32 [K].

    Number i is at least 0 and below `choices[i]`. Networks embed the numbers of a spec that has
    this attribute; as mere numbers they would be of little use.
    """

    def __init__(self, choices: tuple[int, ...]):
        super().__init__([len(choices)], tf.int32)
        self.choices = choices

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, ChoiceSpec) and self.choices == other.choices

    def __hash__(self) -> int:
        return hash(self.choices)
