"""A teacher that is a checkpoint of Dopamine's DQN or Rainbow for Atari, of JAX or TensorFlow.

Its Nature network reads the last frames, uint8 [84, 84, 4] with the oldest first, as our levels
stack them, and pads images as TensorFlow's SAME does. DQN's last layer has a value for each action;
Rainbow's has 51 logits for each, of the probabilities of returns from -10 to 10.
"""

from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.data.trajectory import Entry
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.teachers import dopamine_files
from impala_mm.teachers.frames import Frames, ask_at_once
from impala_mm.teachers.kinds import FitActions, NoTeacher

_KERNELS = (8, 4, 3)  # height and width of the convolutions, in pixels
_STRIDES = (4, 2, 1)
_ATOMS = 51  # returns for each of which Rainbow computes a probability
_LARGEST = 10.0  # the largest of them; it is no part of a checkpoint


class DopamineTeacher:
    """Values of actions by a network of Dopamine's; the policy is softmax(values / temperature)."""

    greedy = True

    def __init__(self, name: str, path: Path, fit: FitActions, temperature: float):
        """Read the checkpoint at `path`; raise NoTeacher if it does not fit the student's level."""
        self.name, self._temperature = name, temperature
        layers = dopamine_files.read_layers(path)
        outputs = len(layers[-1].bias)
        self._is_rainbow = outputs % _ATOMS == 0
        self.num_actions = outputs // _ATOMS if self._is_rainbow else outputs
        spec = fit(self.num_actions)
        _check(path, layers, spec)
        if spec.actions.discrete != self.num_actions:
            raise NoTeacher(
                f"{path} was trained with {self.num_actions} actions, and {spec.level_name} takes "
                f"{spec.actions.describe()}: give a checkpoint of this game, or say by "
                f"--teacher_actions which of the teacher's actions are those of the student"
            )
        self._layers = [
            [tf.Variable(weights, trainable=False) for weights in layer] for layer in layers
        ]
        self._frames = Frames(spec.observation, spec.frame_stack)
        self.notes = [
            f"{path} does not say on which game it was trained: its {self.num_actions} actions are "
            f"taken as those of {spec.level_name}, in the emulator's order"
        ]
        if self._is_rainbow:
            self.notes.append(
                f"{path} is Rainbow's, and does not say which returns its {_ATOMS} probabilities "
                f"are of: they are taken as -{_LARGEST:g} to {_LARGEST:g}, as published"
            )

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes: the frames that it stacks."""
        return self._frames.initial_state(batch)

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""
        stack, state = self._frames.step(entry, state)
        return self._values(stack) / self._temperature, state

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters [T+1, B, P] for entries [T+1, B, ...] of unrolls."""
        stacks = self._frames.unroll(entries)
        return ask_at_once(self._values, stacks, self.num_actions) / self._temperature

    def _values(self, stacks: tf.Tensor) -> tf.Tensor:
        """Return the values [N, A] of stacks uint8 [N, height, width, C]."""
        x = tf.cast(stacks, tf.float32) / 255.0
        *convolutions, (hidden, hidden_bias), (output, output_bias) = self._layers
        for (kernel, bias), stride in zip(convolutions, _STRIDES, strict=True):
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, stride, "SAME") + bias)
        x = tf.reshape(x, [-1, hidden.shape[0]])
        x = tf.nn.relu(x @ hidden + hidden_bias) @ output + output_bias
        if not self._is_rainbow:
            return x
        probabilities = tf.nn.softmax(tf.reshape(x, [-1, self.num_actions, _ATOMS]))
        return tf.linalg.matvec(probabilities, tf.linspace(-_LARGEST, _LARGEST, _ATOMS))


def _check(path: Path, layers: list[dopamine_files.Layer], spec: EnvironmentSpec) -> None:
    """Raise NoTeacher unless the network reads the observations of a level."""
    seen = spec.observation
    if not isinstance(seen, tf.TensorSpec) or seen.dtype != tf.uint8 or seen.shape.rank != 3:
        raise NoTeacher(
            f"{path} reads images of bytes, such as those of Atari's games, and observations of "
            f"{spec.level_name} are no such images"
        )
    height, width, channels = seen.shape
    stacked, first = channels * spec.frame_stack, layers[0].kernel.shape[2]
    if stacked != first:
        raise NoTeacher(
            f"{path} reads stacks of {first} frames, and {spec.level_name} has {stacked} of them: "
            f"give a checkpoint that was trained with {stacked}"
        )
    for stride in _STRIDES:
        height, width = -(-height // stride), -(-width // stride)
    *convolutions, hidden, output = (layer.kernel.shape for layer in layers)
    expected = [
        (kernel, kernel, inputs)
        for kernel, inputs in zip(
            _KERNELS, [stacked, *(shape[3] for shape in convolutions)], strict=False
        )
    ]
    found = [shape[:3] for shape in convolutions]
    if found != expected or output[0] != hidden[1]:
        raise NoTeacher(
            f"{path} has layers of other shapes than Dopamine's network, whose kernels are of "
            f"{', '.join(f'{k}x{k}' for k in _KERNELS)} pixels: give a checkpoint of DQN or Rainbow"
        )
    if hidden[0] != height * width * convolutions[-1][3]:
        raise NoTeacher(
            f"{path} reads images of another size than {seen.shape[0]}x{seen.shape[1]}, which "
            f"{spec.level_name} has: Dopamine's are 84x84, so leave out --width and --height"
        )
