"""Network: a torso and an optional recurrent core, from what an entry shows to features.

    observation -- arranged -- frame stack, if any -- torso -.
    last reward ---------------------------------------------+- concat -- core, if any -- features
    last action, one-hot ------------------------------------'

Algorithms put their heads on the features. An actor calls `step`, a learner `unroll`; both give the
same. Where `first` is true an episode starts: stack and core restart from `initial_state` before
they read that entry, and last reward and last action are read as zeros.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import sonnet as snt
import tensorflow as tf

from nets.frame_stack import FrameStack

Scaled = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.DType], tf.Tensor]  # `_scaled`, or the same
_SWAPPED = threading.Lock()  # held while a torso's modules have casts for variables


class Torso(Protocol):
    """Reads each observation by itself; a Sonnet module."""

    submodules: Sequence[snt.Module]

    def unsuitable(self, shape: tuple[int, ...]) -> str | None:
        """Why it cannot read observations of this shape, as `it reads ...`; None if it can."""

    def arrange(self, observation: tf.Tensor) -> tf.Tensor:
        """Observations [N, *shape], of their own dtype, in the layout that the torso reads."""

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """Features [N, D] of arranged, perhaps stacked observations [N, ...]; both float32, or of
        the network's precision. Its variables are attributes of modules, of its own or below it.
        """


class Core(Protocol):
    """Remembers what it read since the episode's start. State: nest of [B, ...]."""

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """The state that `first` restores."""

    def step(self, inputs: tf.Tensor, first: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """(features [B, F], state) from inputs [B, I], first [B] and the state before them."""

    def unroll(self, inputs: tf.Tensor, first: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """(features [T, B, F], last state) from inputs [T, B, I], first [T, B] and a state."""


class Picture(NamedTuple):
    """An image of bytes, or a stack of such; each frame is summed once, not once in each stack."""

    image: Any  # uint8 [..., H, W, C], arranged
    sums: Any  # float32 [..., 2], or of n frames [..., n x 2]; see `_sums`


class State(NamedTuple):
    """What a network carries from one entry to the next; () for a part that it does not have."""

    frames: Any  # of FrameStack
    core: Any


class Network(snt.Module):
    """All its variables exist once it is constructed."""

    def __init__(
        self,
        torso: Torso,
        core: Core | None,
        observation: tf.TensorSpec,
        num_actions: int,
        frame_stack: int = 1,
        precision: tf.DType = tf.float32,  # that the torso computes in
        name: str = "network",
    ):
        super().__init__(name=name)
        self._torso, self._core, self._num_actions = torso, core, num_actions
        self._shape = observation.shape.as_list()
        self._bytes = observation.dtype == tf.uint8
        self._pictures = self._bytes and len(self._shape) == 3
        nothing = tf.zeros([1, *self._shape], observation.dtype)
        frame = tf.nest.map_structure(
            lambda part: tf.TensorSpec(part.shape[1:], part.dtype), self._seen(nothing)
        )
        self._stack = FrameStack(frame_stack, frame) if frame_stack > 1 else None
        self._precision = tf.float32  # of the variables, which are made now
        features, _ = self.step(
            nothing,
            tf.zeros([1]),
            tf.zeros([1], tf.int32),
            tf.constant([True]),
            self.initial_state(1),
        )
        self.num_features: int = features.shape[-1]  # F
        self._precision = precision

    def initial_state(self, batch: int | tf.Tensor) -> State:
        """The state at an episode's start: nest of [B, ...]."""
        parts = (self._stack, self._core)
        return State(*[part.initial_state(batch) if part else () for part in parts])

    def step(
        self,
        observation: tf.Tensor,  # the environment's dtype [B, *shape]
        reward: tf.Tensor,  # float32 [B], clipped as the algorithm wishes
        action: tf.Tensor,  # int32 [B]
        first: tf.Tensor,  # bool [B]
        state: State,
    ) -> tuple[tf.Tensor, State]:
        """(features float32 [B, F], state) after reading one entry."""
        frames, core = state
        seen = self._seen(observation)
        if self._stack:
            seen, frames = self._stack.step(seen, first, frames)
        read = self._read(_scaled, seen, reward, action, first)
        if self._core:
            read, core = self._core.step(read, first, core)
        return read, State(frames, core)

    def unroll(
        self,
        observation: tf.Tensor,  # the environment's dtype [T, B, *shape]
        reward: tf.Tensor,  # float32 [T, B]
        action: tf.Tensor,  # int32 [T, B]
        first: tf.Tensor,  # bool [T, B]
        state: State,  # before entry 0 is read
    ) -> tuple[tf.Tensor, State]:
        """(features float32 [T, B, F], last state) after reading T entries."""
        frames, core = state
        seen = self._seen(tf.reshape(observation, [-1, *self._shape]))
        if self._stack:
            sizes = _sizes(first)
            seen = tf.nest.map_structure(lambda x: tf.reshape(x, [*sizes, *x.shape[1:]]), seen)
            seen, frames = self._stack.unroll(seen, first, frames)
            seen = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), seen)
        flat = [tf.reshape(x, [-1]) for x in (reward, action, first)]
        scaled = _scaled if tf.config.get_visible_devices("GPU") else _fused
        read = self._read(scaled, seen, *flat)  # [T*B, I]
        read = tf.reshape(read, [*_sizes(first), read.shape[-1]])
        if self._core:
            read, core = self._core.unroll(read, first, core)
        return read, State(frames, core)

    def _seen(self, observation: tf.Tensor) -> Any:
        """Observations [N, *shape] arranged; of pictures in bytes, with what `_contrast` needs."""
        arranged = self._torso.arrange(tf.convert_to_tensor(observation))
        return Picture(arranged, _sums(arranged)) if self._pictures else arranged

    def _read(
        self,
        scaled: Scaled,
        seen: Any,
        reward: tf.Tensor,
        action: tf.Tensor,
        first: tf.Tensor,
    ) -> tf.Tensor:
        """What one entry shows by itself: [N, I]; `seen` is stacked, pictures yet to be scaled."""
        if self._pictures:
            seen = _contrast(seen, self._precision, scaled)
        else:
            seen = tf.cast(seen, tf.float32)
            seen = seen / 255.0 if self._bytes else seen
        last_reward = tf.where(first, 0.0, reward)[:, None]
        last_action = tf.one_hot(tf.where(first, -1, action), self._num_actions)  # -1: all zeros
        return tf.concat([self._features(seen), last_reward, last_action], axis=-1)

    def _features(self, seen: tf.Tensor) -> tf.Tensor:
        """The torso's, float32 [N, D]; in a lower precision weights and gradients stay float32."""
        if self._precision == tf.float32:
            return self._torso(seen)
        with _cast((self._torso, *self._torso.submodules), self._precision):
            return tf.cast(self._torso(tf.cast(seen, self._precision)), tf.float32)


@contextlib.contextmanager
def _cast(modules: Sequence[snt.Module], dtype: tf.DType) -> Iterator[None]:
    """Within, these modules compute with casts of their variables."""
    with _SWAPPED:
        held = [
            (vars(m), {n: v for n, v in vars(m).items() if isinstance(v, tf.Variable)})
            for m in modules
        ]
        try:
            for attributes, variables in held:
                attributes.update({n: tf.cast(v, dtype) for n, v in variables.items()})
            yield
        finally:
            for attributes, variables in held:
                attributes.update(variables)


def _sums(image: tf.Tensor) -> tf.Tensor:
    """float32 [N, 2] of bytes [N, H, W, C]: the sum of each image's, and of their squares."""
    numbers = tf.cast(tf.reshape(image, [-1, image.shape[1:].num_elements()]), tf.float32)
    return tf.stack([tf.reduce_sum(numbers, 1), tf.reduce_sum(numbers**2, 1)], 1)


def _contrast(picture: Picture, dtype: tf.DType, scaled: Scaled) -> tf.Tensor:
    """Each image [H, W, C] of bytes as differences from its own mean, in its standard deviations.

    Most of a game's picture never changes. Read as bytes / 255 it drowns what does, a ball of a few
    pixels: in recorded Pong the features' mean was 20 times what they varied by, and after 80,000
    steps the value had a correlation with the reward ahead of 0.12; read this way, of 0.67.
    """
    image, sums = picture
    each = tf.cast(tf.reshape(sums, [-1, sums.shape[-1] // 2, 2]), tf.float64)  # of each frame
    means = tf.reduce_sum(each, 1) / image.shape[1:].num_elements()
    mean, square = tf.unstack(means[:, :, None, None, None], axis=1)
    # In float64: of a bright picture both are large, and nearly the same. 1: pixels may be equal.
    scale = tf.math.rsqrt(square - mean**2 + 1.0)
    return scaled(image, tf.cast(mean, tf.float32), tf.cast(scale, tf.float32), dtype)


def _scaled(image: tf.Tensor, mean: tf.Tensor, scale: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What lies above the mean, times the scale."""
    return tf.cast((tf.cast(image, tf.float32) - mean) * scale, dtype)


# In one pass over the pictures, where TensorFlow's operations make four, each of a batch that no
# cache holds. For learners on a CPU: a GPU is not kept by it, and who serves a model may lack XLA.
_fused = tf.function(_scaled, autograph=False, jit_compile=True)


def _sizes(x: tf.Tensor) -> list[Any]:
    """The sizes of its axes: as numbers where they are known, so that shapes stay static."""
    dynamic = tf.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
