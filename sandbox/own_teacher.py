"""An example of a user's own kind of teacher: a linear policy, whose weights NumPy has saved.

`own_names.py` gives it its name; sandbox/teachers.md explains it.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from impala_mm.teachers.teacher import NoTeacher, ObservingTeacher, Request


class LinearTeacher(ObservingTeacher):
    """A policy whose logits [N, A] are observations [N, D] times weights [D, A]."""

    in_words = "a file of weights, .npy"

    @staticmethod
    def recognises(name: str, path: Path) -> bool:
        """Return whether --teacher=name, a path, is of this kind."""
        return path.suffix == ".npy"

    def __init__(self, request: Request):
        """Read the weights."""
        weights = np.load(request.path, allow_pickle=False).astype(np.float32)
        spec, self.num_actions = request.fit_discrete("a linear policy", weights.shape[1])
        if weights.shape != (*spec.observation.shape, self.num_actions):
            raise NoTeacher(f"its weights have shape {weights.shape}")
        super().__init__(request, spec)
        self._weights = tf.constant(weights)

    def answer(self, observations: tf.Tensor) -> tf.Tensor:
        """Return the logits [N, A] for observations [N, D]."""
        return observations @ self._weights
