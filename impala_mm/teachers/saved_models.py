"""A teacher that is a SavedModel of another program, or of an earlier version of this one.

Its signature `serving_default` takes N observations, [N, ...] as the network reads them or, where
frames are stacked, single ones, and what else an export of ours takes (`policy.saved_model`) if it
asks for it. Its output is named `policy` (the probabilities of Discrete actions, [N, A]), `logits`,
or `values` (of actions).
"""

from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.interface import zero_entry
from impala_mm.config.messages import describe_error
from impala_mm.data.trajectory import Entry, leaf_names
from impala_mm.teachers.teacher import (
    LEAST,
    Frames,
    NoTeacher,
    PlayingTeacher,
    Request,
    ask_at_once,
)

_OUTPUTS = ("values", "logits", "policy")


class SavedModelTeacher(PlayingTeacher):
    """A SavedModel, which is run: it must come from someone whom the user trusts."""

    in_words = "a SavedModel"
    trust = (
        "it is a SavedModel that --mode=export of this version has not written. A SavedModel is a "
        "program, which may read and write your files"
    )
    num_actions: int

    @staticmethod
    def recognises(name: str, path: Path) -> bool:
        """Return whether a path holds a SavedModel; of an export it is that of the weights."""
        return (path / "saved_model.pb").exists()

    def __init__(self, request: Request):
        """Load and call it; raise NoTeacher if that fails, or if its signature does not fit."""
        super().__init__(request)
        request.fit_discrete("a SavedModel")
        self._temperature = request.config.teacher_temperature
        try:
            self._model = tf.saved_model.load(str(request.path))
            self._act = self._model.signatures["serving_default"]
        except (OSError, KeyError, ValueError, tf.errors.OpError) as error:
            raise NoTeacher(
                f"it cannot be loaded ({describe_error(error)[:200]}): copy its folder again, or "
                f"save it by a version of TensorFlow that this one reads"
            ) from None
        inputs = self._act.structured_input_signature[1]
        self._types = {name: leaf.dtype for name, leaf in inputs.items()}
        self._output = next((n for n in _OUTPUTS if n in self._act.structured_outputs), "")
        if not self._output:
            raise NoTeacher(
                f"its outputs are {', '.join(self._act.structured_outputs)}: one must be named "
                f"policy, logits or values"
            )
        self.greedy = self._output == "values"
        shape = self._act.structured_outputs[self._output].shape
        count = shape[-1] if shape.rank == 2 else None
        self._spec, self.num_actions = request.fit_discrete("a SavedModel", count)
        self._check(inputs)

    def _check(self, inputs: dict[str, tf.TensorSpec]) -> None:
        """Raise NoTeacher if it does not answer to entries of this environment."""
        self._frames, offered = self._choose_frames(inputs)
        outputs = self._act.structured_outputs
        state = [name for name in inputs if name not in offered]
        self._begin = self._model.signatures.get("initial_state") if state else None
        if unknown := [name for name in state if name not in outputs or not self._begin]:
            raise NoTeacher(
                f"it asks for an input {unknown[0]}, which is none of {', '.join(sorted(offered))} "
                f"and no state that it returns itself"
            )
        try:
            logits, _ = self.step(zero_entry(self._spec), self.initial_state(1))
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise NoTeacher(
                f"it does not take observations of {self._spec.level_name}: "
                f"{describe_error(error)[:300]}"
            ) from None
        if logits.shape != [1, self.num_actions]:
            raise NoTeacher(
                f"its output {self._output} has shape {logits.shape.as_list()} for one observation "
                f"of {self._spec.level_name}, which has {self.num_actions} actions"
            )

    def _choose_frames(self, inputs: dict[str, tf.TensorSpec]) -> tuple[Frames, Any]:
        """Return the frames that it reads, stacks if these fit, and all that it may ask for."""
        reason = ""
        for count in dict.fromkeys([self._spec.frame_stack, 1]):
            frames, entry = Frames(self._spec.observation, count), zero_entry(self._spec)
            read, _ = frames.step(entry, frames.initial_state(1))
            offered = self._offered(entry._replace(observation=read))
            wrong = (
                f"its input {name} has shape {leaf.shape}, and in {self._spec.level_name} one "
                f"such entry is {offered[name].shape}"
                for name, leaf in inputs.items()
                if name in offered and not leaf.shape.is_compatible_with(offered[name].shape)
            )
            if not (misfit := next(wrong, "")):
                return frames, offered
            reason = reason or misfit
        raise NoTeacher(reason)

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes: (stacked frames, its own by name)."""
        own = dict(self._begin(batch_size=tf.convert_to_tensor(batch))) if self._begin else {}
        return self._frames.initial_state(batch), own

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""
        read, frames = self._frames.step(entry, state[0])
        logits, own = self._ask(entry._replace(observation=read), state[1])
        return logits, (frames, own)

    def _ask(self, read: Entry, own: dict[str, tf.Tensor]) -> tuple[tf.Tensor, Any]:
        """Return (logits [N, A], its own memory) after entries [N, ...] as it reads them."""
        offered = self._offered(read)
        asked = {name: offered[name] for name in self._types if name in offered}
        cast = {name: tf.cast(x, self._types[name]) for name, x in asked.items()}
        answer = self._act(**cast, **own)
        return self._logits(answer[self._output]), {name: answer[name] for name in own}

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters [T+1, B, P] for entries [T+1, B, ...] of unrolls."""
        read = entries._replace(
            observation=self._frames.unroll(entries), terminated=(), truncated=(), extras=()
        )
        if not self._begin:
            return ask_at_once(lambda flat: self._ask(flat, {})[0], read, self.num_actions)
        (_, own), answers = self.initial_state(tf.shape(entries.first)[1]), []
        for t in range(entries.first.shape[0]):
            logits, own = self._ask(tf.nest.map_structure(lambda x, t=t: x[t], read), own)
            answers.append(logits)
        return tf.stack(answers)

    def _offered(self, entry: Entry) -> dict[str, tf.Tensor]:
        """Return all that a signature may ask for of entries [B, ...], by name."""
        nests = {
            "observation": entry.observation,
            "last_action": entry.action,
            "last_reward": entry.reward,
            "first": entry.first,
            "action_mask": entry.mask,
            "exploration": tf.zeros_like(entry.reward),
        }
        offered = {
            name: leaf
            for kind, nest in nests.items()
            for name, leaf in zip(leaf_names(nest, kind), tf.nest.flatten(nest), strict=True)
        }
        seen = tf.nest.flatten(entry.observation)
        if len(self._types) == 1 and len(seen) == 1:  # the observation, whatever its name
            offered[next(iter(self._types))] = seen[0]
        return offered

    def _logits(self, answer: tf.Tensor) -> tf.Tensor:
        """Return the logits of what the output means."""
        answer = tf.cast(answer, tf.float32)
        if self._output == "policy":
            return tf.math.log(tf.maximum(answer, LEAST))
        return answer / self._temperature if self._output == "values" else answer
