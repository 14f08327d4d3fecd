"""The check of what an actor's unroll contains, before it can spoil an update.

The learner's server (`transport.delivery`) calls it for each unroll: a choice that does not exist
would end the learner, and a number that is not finite the run. Replay calls it for each unroll that
it would store: one with NaN would be drawn again and again.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Unroll, UnrollSpec, leaf_names
from impala_mm.environments.action_parts import Box
from impala_mm.environments.actions import ActionSpec


class _Part(NamedTuple):
    """A part of an unroll's bytes that is checked."""

    name: str
    dtype: np.dtype
    begin: int  # byte
    size: int  # numbers
    # How many each number of an entry chooses among, [elements]; None: it is no choice.
    choices: np.ndarray | None
    infinite: bool  # whether numbers that are no choices may be infinite; none may be NaN


def choices_of(spec: tf.TensorSpec) -> np.ndarray | None:
    """Return how many each number of an observation chooses among; None if it is no choice."""
    among = getattr(spec, "choices", None)
    return None if among is None else np.array(among, np.uint64)


def lacking_choice(numbers: np.ndarray, choices: np.ndarray) -> np.generic | None:
    """Return a number that none of its choices has, of [..., K] among `choices` [K]; or None."""
    unsigned = numbers.view(f"u{numbers.dtype.itemsize}")  # in which none is negative
    is_wrong = unsigned.reshape(-1, len(choices)) >= choices
    return numbers.ravel()[is_wrong.ravel()][0] if is_wrong.any() else None


class UnrollCheck:
    """The check of unrolls of one layout."""

    def __init__(self, spec: UnrollSpec, actions: ActionSpec | None = None, extras: bool = False):
        """Check actions, rewards, observations and the start of unrolls of this layout.

        None: choices are not checked, since they were before. With `extras`, these must not be NaN
        either; they may be infinite, as the log-probability of what is forbidden is.
        """
        self._parts: list[_Part] = []
        choices = [
            None if isinstance(part, Box) else np.array(part.choices, np.uint64)
            for part in (actions.leaves if actions else ())
        ]
        entries, begin = len(tf.nest.flatten(spec.step)), 0
        names = leaf_names(Unroll(spec.step, spec.start), "", "/")
        leaves = tf.nest.flatten(Unroll(spec.step, spec.start))
        for i, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
            dtype = np.dtype(leaf.dtype.as_numpy_dtype)
            count = leaf.shape.num_elements() * (spec.length + spec.overlap if i < entries else 1)
            among = choices[i] if i < len(choices) else choices_of(leaf)
            in_extras = name.startswith("/entries/extras")
            if among is not None or (dtype.kind == "f" and (extras or not in_extras)):
                shown = name.removeprefix("/entries/").removeprefix("/")
                self._parts.append(_Part(shown, dtype, begin, count, among, in_extras))
            begin += count * dtype.itemsize

    def mistake(self, content: bytes) -> str:
        """Return what is wrong with an unroll's bytes; empty if nothing is."""
        for part in self._parts:
            numbers = np.frombuffer(content, part.dtype, part.size, part.begin)
            if part.choices is None:
                if part.infinite and np.isnan(numbers).any():
                    return f"its {part.name} contains NaN"
                if not part.infinite and not np.isfinite(numbers).all():
                    return f"its {part.name} contains NaN or infinity"
                continue
            if (number := lacking_choice(numbers, part.choices)) is not None:
                most = part.choices.max()
                return f"its {part.name} contains {number}, and there are {most} choices"
        return ""
