"""A teacher that is a function of the user's: --teacher=my_package:function.

    def lean(observations):
        return observations[:, 2] > 0              # an action for each of N observations

It takes N observations at once, NumPy arrays [N, ...] as the network reads them (a dict or tuple of
arrays, if that is what observations are; of Atari's games stacks of frames, the newest one last),
and returns N actions, or their probabilities [N, A].
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.config import user_modules
from impala_mm.config.messages import describe_error
from impala_mm.teachers.teacher import LEAST, NoTeacher, ObservingTeacher, Request


class FunctionTeacher(ObservingTeacher):
    """A function of observations."""

    in_words = "my_package:function"

    @staticmethod
    def recognises(name: str, path: Path) -> bool:
        """Return whether this is the name of a function."""
        return ":" in name and not path.exists()

    def __init__(self, request: Request):
        """Find the function and call it; raise NoTeacher if it cannot teach."""
        spec, _ = request.fit_discrete("a function")
        super().__init__(request, spec)
        # It follows the sentence on an action that the teacher does not have.
        self._hint = ""
        if request.order:
            self._hint = (
                "; with more actions than --teacher_actions names, it must return their "
                "probabilities"
            )
        self._function = _find(request.name)
        nothing = [
            np.zeros([2, *leaf.shape], leaf.dtype.as_numpy_dtype)
            for leaf in tf.nest.flatten(self._frames.specs)
        ]
        answer = self._ask_function(nothing)
        count = answer.shape[1] if answer.ndim == 2 else None
        _, self.num_actions = request.fit_discrete("a function", count)
        self._call(*nothing)

    def answer(self, observations: Any) -> tf.Tensor:
        """Return the logits [N, A] for observations [N, ...]."""
        flat = tf.nest.flatten(observations)
        logits = tf.numpy_function(self._call, flat, tf.float32)
        return tf.ensure_shape(logits, [flat[0].shape[0], self.num_actions])

    def _ask_function(self, flat: Sequence[np.ndarray]) -> np.ndarray:
        """Return the function's answer to observations, arrays [N, ...]; raise NoTeacher."""
        try:
            return np.asarray(self._function(tf.nest.pack_sequence_as(self._frames.specs, flat)))
        except Exception as error:
            raise NoTeacher(f"it raises {describe_error(error)}") from error

    def _call(self, *flat: np.ndarray) -> np.ndarray:
        """Return the logits [N, A] as the function's answer means them; raise NoTeacher."""
        count, num_actions = len(flat[0]), self.num_actions
        answer = self._ask_function(flat)
        if answer.shape == (count,) and answer.dtype.kind in "iub":
            if wrong := [a for a in answer.tolist() if not 0 <= a < num_actions]:
                raise NoTeacher(
                    f"it returns action {wrong[0]}, and actions are 0 to {num_actions - 1}"
                    f"{self._hint}"
                )
            probabilities = np.eye(num_actions)[answer.astype(int)]
        elif answer.shape == (count, num_actions) and answer.dtype.kind == "f":
            probabilities = answer
        else:
            raise NoTeacher(
                f"for {count} observations it returns {answer.dtype.name} {list(answer.shape)}: it "
                f"must return {count} whole numbers, the actions, or their probabilities "
                f"[{count}, {num_actions}]"
            )
        if not (np.all(probabilities >= 0) and np.allclose(probabilities.sum(-1), 1, atol=1e-3)):
            raise NoTeacher("it returns probabilities that are negative, or whose sum is not 1")
        return np.log(np.maximum(probabilities, LEAST)).astype(np.float32)


def _find(name: str) -> Callable[[Any], Any]:
    """Return the function that my_package:function names; raise NoTeacher."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(user_modules.import_module(module, f":{attribute}"), attribute, None)
    except user_modules.BadModule as error:
        raise NoTeacher(str(error)) from error.__cause__
    if not callable(function):
        raise NoTeacher(f"{module} has no function {attribute}")
    return function
