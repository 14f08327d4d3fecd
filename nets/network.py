"""Network: a torso and an optional recurrent core, which turn entries into features.

    observation -- arranged -- frame stack, if any -- torso -.
    last reward ---------------------------------------------+- concat -- core, if any -- features
    last action, as features --------------------------------'

Algorithms add their heads to the features. An actor calls `step` and a learner calls `unroll`; both
compute the same. Where `first` is true, an episode starts: stack and core restart from
`initial_state` before they read that entry, and the last reward and action are read as zeros.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import sonnet as snt
import tensorflow as tf

from nets.frame_stack import FrameStack, shift, shift_frames

_SWAPPED = threading.Lock()  # held while a torso's variables are replaced by casts


class Unsuitable(ValueError):
    """An error of a choice of network: none has the name, or it cannot read the observations."""


class Actions(Protocol):
    """The actions of an environment, which are nests of tensors."""

    @property
    def specs(self) -> Any:
        """The specs of one action: nest of tf.TensorSpec."""

    def features(self, action: Any, first: tf.Tensor) -> tf.Tensor:
        """Return actions [N, ...] as vectors, float32 [N, F]; zeros where `first`, bool [N]."""


class Choice(NamedTuple):
    """One choice among n: actions int32 []."""

    n: int

    @property
    def specs(self) -> tf.TensorSpec:
        """The spec of one action."""
        return tf.TensorSpec([], tf.int32)

    def features(self, action: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        """Return the actions as one-hot vectors; zeros where `first`."""
        return tf.one_hot(tf.where(first, -1, action), self.n)  # -1: all zeros


class Torso(snt.Module):
    """A module that computes features of each observation separately."""

    def unsuitable(self, shape: tuple[int, ...]) -> str | None:
        """Return why it cannot read observations of this shape ("it reads ..."); None if it can."""

    def arrange(self, observation: Any) -> Any:
        """Return observations [N, *shape] in the torso's own layout; their dtype stays."""
        return observation

    def restore(self, arranged: tf.Tensor) -> tf.Tensor:
        """Return the observations [N, *shape] that `arrange` has arranged."""
        return arranged

    def __call__(self, observation: Any) -> tf.Tensor:
        """Return the features [N, D] of observations [N, ...], arranged and perhaps stacked.

        Both are float32 or of the network's precision. The torso's variables must be attributes of
        the torso itself or of its submodules.
        """
        raise NotImplementedError


class Core(Protocol):
    """A recurrent core with a memory of the current episode; its state is a nest of [B, ...]."""

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the state at an episode's start."""

    def step(self, inputs: tf.Tensor, first: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (features [B, F], state) for inputs [B, I], first [B] and the last state."""

    def unroll(self, inputs: tf.Tensor, first: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (features [T, B, F], last state) for inputs [T, B, I] and first [T, B]."""


class Picture(NamedTuple):
    """An image of bytes, or a stack of images, with the sums that `_contrast` needs.

    The sums are computed once for each frame, and stacked like the frames. There are none where a
    mean image is known.
    """

    image: Any  # uint8 [..., H, W, C], arranged
    sums: Any  # float32 [..., 2], or [..., n x 2] for n frames; see `_sums`; or ()


class Rows(NamedTuple):
    """The rows of an `Embedding`'s table that belong to observations."""

    rows: Any  # int32 [N, K]


class State(NamedTuple):
    """The state of a network between two entries; () for a part that the network does not have."""

    frames: Any  # the state of its FrameStack
    core: Any  # the state of its Core


class Network(snt.Module):
    """A torso with an optional frame stack and core; the constructor creates all variables."""

    def __init__(
        self,
        torso: Torso,
        core: Core | None,
        observation: Any,  # spec, or nest of specs
        actions: Actions,
        frame_stack: int = 1,
        precision: tf.DType = tf.float32,  # of the torso's computations
        name: str = "network",
        mean: Any = None,
    ):
        """Read `observation`, and subtract `mean` from its images of bytes, pixel by pixel.

        `mean` is a nest like an observation, of float32; None: each image's own mean, a number, is
        subtracted. The entries of parts that are no such images are not used.
        """
        super().__init__(name=name)
        self._torso, self._core, self._actions = torso, core, actions
        self._observation, self._mean = observation, mean
        nothing = tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape], s.dtype), observation)
        frame = tf.nest.map_structure(
            lambda part: tf.TensorSpec(part.shape[1:], part.dtype), self._seen(nothing)
        )
        self._stack = FrameStack(frame_stack, frame) if frame_stack > 1 else None
        self._precision = tf.float32  # of the variables, which this call creates
        features, _ = self.step(
            nothing,
            tf.zeros([1]),
            tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape], s.dtype), actions.specs),
            tf.constant([True]),
            self.initial_state(1),
        )
        self.num_features: int = features.shape[-1]  # F
        self._precision = precision

    def initial_state(self, batch: int | tf.Tensor) -> State:
        """Return the state at an episode's start: nest of [B, ...]."""
        parts = (self._stack, self._core)
        return State(*[part.initial_state(batch) if part else () for part in parts])

    def step(
        self,
        observation: Any,  # nest of the environment's dtype [B, *shape]
        reward: tf.Tensor,  # float32 [B], clipped by the algorithm
        action: Any,  # nest of [B, ...]; int32 [B] for a single choice
        first: tf.Tensor,  # bool [B]
        state: State,
    ) -> tuple[tf.Tensor, State]:
        """Return (features float32 [B, F], state) after reading one entry."""
        frames, core = state
        seen = self._seen(observation)
        if self._stack:
            seen, frames = self._stack.step(seen, first, frames)
        read = self._read(False, seen, reward, action, first)
        if self._core:
            read, core = self._core.step(read, first, core)
        return read, State(frames, core)

    def unroll(
        self,
        observation: Any,  # nest of the environment's dtype [T, B, *shape]
        reward: tf.Tensor,  # float32 [T, B]
        action: Any,  # nest of [T, B, ...]
        first: tf.Tensor,  # bool [T, B]
        state: State,  # before entry 0 is read
    ) -> tuple[tf.Tensor, State]:
        """Return (features float32 [T, B, F], last state) after reading T entries."""
        core = state.core
        seen, frames = self._see(observation, first, state.frames)
        flat_action = tf.nest.map_structure(
            lambda spec, x: tf.reshape(x, [-1, *spec.shape]), self._actions.specs, action
        )
        fused = not tf.config.get_visible_devices("GPU")
        flat_reward, flat_first = tf.reshape(reward, [-1]), tf.reshape(first, [-1])
        read = self._read(fused, seen, flat_reward, flat_action, flat_first)  # [T*B, I]
        read = tf.reshape(read, [*_sizes(first), read.shape[-1]])
        if self._core:
            read, core = self._core.unroll(read, first, core)
        return read, State(frames, core)

    def state_after(self, observation: Any, first: tf.Tensor) -> State:
        """Return the state after observations [N, B, ...] of which only the frames are remembered.

        The core's state is the one at an episode's start.
        """
        state = self.initial_state(tf.shape(first)[1])
        return State(self._see(observation, first, state.frames)[1], state.core)

    def _see(self, observation: Any, first: tf.Tensor, frames: Any) -> tuple[Any, Any]:
        """Return observations [T, B, ...], arranged and stacked as [T*B, ...], and the last frames.

        `frames` are those before.
        """
        seen = self._seen(
            tf.nest.map_structure(
                lambda spec, x: tf.reshape(x, [-1, *spec.shape]), self._observation, observation
            )
        )
        if not self._stack:
            return seen, frames
        sizes = _sizes(first)
        seen = tf.nest.map_structure(lambda x: tf.reshape(x, [*sizes, *x.shape[1:]]), seen)
        seen, frames = self._stack.unroll(seen, first, frames)
        return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), seen), frames

    def earlier_images(self, state: State) -> Any:
        """Return the images before the next entry that a state holds, uint8 [n-1, B, H, W, C].

        They are zeros before an episode's start. Return () if the network stacks no images, or if
        it has cut them.
        """
        if not self._stack or not isinstance(state.frames, Picture):
            return ()
        frames = tf.concat(tf.split(state.frames.image, self._stack.before, -1), 0)
        images = self._torso.restore(frames)
        if images.shape[1:] != self._observation.shape:
            return ()
        return tf.reshape(images, [self._stack.before, -1, *self._observation.shape])

    def shift_images(
        self, observation: Any, state: State, offsets: tf.Tensor, most: int
    ) -> tuple[Any, State]:
        """Return observations [T, B, ...] and the state before them with shifted images.

        `offsets` int32 [B, 2] are those of the columns (see `shift`). Frames of nests, which no
        environment here stacks, stay as they are in the state.
        """
        moved = tf.nest.map_structure(
            lambda spec, x: shift(x, offsets, most) if spec.shape.rank == 3 else x,
            self._observation,
            observation,
        )
        if not self._stack or isinstance(state.frames, list):
            return moved, state
        count, before = self._stack.before, state.frames
        image = before.image if isinstance(before, Picture) else before
        seen = self._seen(shift_frames(image, count, self._torso.restore, offsets, most))
        frames = tf.nest.map_structure(lambda x: tf.concat(tf.split(x, count), -1), seen)
        return moved, State(frames, state.core)

    def _seen(self, observation: Any) -> Any:
        """Return observations [N, *shape] arranged; images of bytes as a `Picture`.

        For a nest of observations it is a list of those of its parts.
        """
        nested = tf.nest.is_nested(observation)
        return _each(
            lambda x: Picture(x, _sums(x) if self._mean is None else ()) if _is_picture(x) else x,
            self._torso.arrange(observation if nested else tf.convert_to_tensor(observation)),
        )

    def _read(
        self,
        fused: bool,
        seen: Any,
        reward: tf.Tensor,
        action: Any,
        first: tf.Tensor,
    ) -> tf.Tensor:
        """Return the inputs of the core for each entry separately, [N, I].

        `seen` is arranged and stacked; its pictures are not yet scaled, which is `fused` or not.
        """
        if isinstance(seen, list):
            means = self._stacked_mean() or [None] * len(seen)
            seen = [self._numbers(*part, fused) for part in zip(seen, means, strict=True)]
        else:
            seen = self._numbers(seen, self._stacked_mean(), fused)
        last_reward = tf.where(first, 0.0, reward)[:, None]
        last_action = self._actions.features(action, first)
        return tf.concat([self._features(seen), last_reward, last_action], axis=-1)

    def _stacked_mean(self) -> Any:
        """Return the mean of what is seen, arranged and as often as frames are stacked, or None."""
        if self._mean is None:
            return None
        one = tf.nest.map_structure(lambda x: tf.convert_to_tensor(x)[tf.newaxis], self._mean)
        arranged, count = self._torso.arrange(one), self._stack.before + 1 if self._stack else 1
        return _each(lambda x: x if count == 1 else tf.concat([x] * count, -1), arranged)

    def _numbers(self, part: Any, mean: Any, fused: bool) -> tf.Tensor:
        """Return a picture or another part of what is seen as numbers; bytes are divided by 255.

        Rows of an embedding's table stay int32.
        """
        if isinstance(part, Picture):
            if mean is None:
                return _contrast(part, self._precision, fused)
            return (_fused_difference if fused else _difference)(part.image, mean, self._precision)
        if isinstance(part, Rows):
            return part.rows
        numbers = tf.cast(part, tf.float32)
        return numbers / 255.0 if part.dtype == tf.uint8 else numbers

    def _features(self, seen: Any) -> tf.Tensor:
        """Return the torso's features, float32 [N, D].

        Variables and their gradients stay float32 when the torso computes in a lower precision.
        """
        if self._precision == tf.float32:
            return self._torso(seen)
        with _cast((self._torso, *self._torso.submodules), self._precision):
            cast = _each(lambda x: x if x.dtype.is_integer else tf.cast(x, self._precision), seen)
            return tf.cast(self._torso(cast), tf.float32)


class Separate(snt.Module):
    """A network for a policy and another one for values, with a torso and a core each.

    It is used like a `Network`, but its features are two tensors (`SeparateFeatures`). Both
    networks must have the same frame stack, whose frames the state contains once.
    """

    def __init__(self, policy: Network, value: Network):
        super().__init__(name="separate")
        self._policy, self._value = policy, value  # Sonnet orders their variables by these names
        self.num_features: int = policy.num_features  # F, of either

    def initial_state(self, batch: int | tf.Tensor) -> State:
        """Return the state at an episode's start: nest of [B, ...]."""
        frames, core = self._policy.initial_state(batch)
        return State(frames, (core, self._value.initial_state(batch).core))

    def state_after(self, observation: Any, first: tf.Tensor) -> State:
        """Return the state after observations; see `Network.state_after`."""
        state = self.initial_state(tf.shape(first)[1])
        return State(self._policy.state_after(observation, first).frames, state.core)

    def earlier_images(self, state: State) -> Any:
        """Return the images before the next entry; see `Network.earlier_images`."""
        return self._policy.earlier_images(state)

    def step(
        self, observation: Any, reward: Any, action: Any, first: Any, state: State
    ) -> tuple["SeparateFeatures", State]:
        """Return (features [B, F], state) after reading one entry; see `Network.step`."""
        return self._both(
            lambda network, own: network.step(observation, reward, action, first, own), state
        )

    def unroll(
        self, observation: Any, reward: Any, action: Any, first: Any, state: State
    ) -> tuple["SeparateFeatures", State]:
        """Return (features [T, B, F], last state) after reading T entries; see `Network.unroll`."""
        return self._both(
            lambda network, own: network.unroll(observation, reward, action, first, own), state
        )

    def _both(
        self, read: Callable[[Network, State], tuple[tf.Tensor, State]], state: State
    ) -> tuple["SeparateFeatures", State]:
        frames, (core, other) = state
        policy, after = read(self._policy, State(frames, core))
        value, after_value = read(self._value, State(frames, other))
        return SeparateFeatures(policy, value), State(after.frames, (after.core, after_value.core))


class SeparateFeatures(NamedTuple):
    """The features of two networks: float32 [..., F] each."""

    policy: tf.Tensor
    value: tf.Tensor


@contextlib.contextmanager
def _cast(modules: Sequence[snt.Module], dtype: tf.DType) -> Iterator[None]:
    """Replace the modules' variables by casts to `dtype` within the context."""
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


def _each(function: Callable[[Any], Any], seen: Any) -> Any:
    """Return what a function returns for what is seen, or for each part if that is a list."""
    return [function(part) for part in seen] if isinstance(seen, list) else function(seen)


def _is_picture(part: Any) -> bool:
    return not isinstance(part, Rows) and part.dtype == tf.uint8 and part.shape.rank == 4


def _sums(image: tf.Tensor) -> tf.Tensor:
    """Return, float32 [N, 2], the sum of each image's bytes [H, W, C] and of their squares."""
    numbers = tf.cast(tf.reshape(image, [-1, image.shape[1:].num_elements()]), tf.float32)
    return tf.stack([tf.reduce_sum(numbers, 1), tf.reduce_sum(numbers**2, 1)], 1)


def _contrast(picture: Picture, dtype: tf.DType, fused: bool) -> tf.Tensor:
    """Return each image [H, W, C] of bytes minus its mean, divided by its standard deviation.

    Most of a game's picture never changes. Read as bytes / 255, this constant part hides the part
    that changes, such as a ball of a few pixels: in recorded Pong the features' mean was 20 times
    their variation, and after 80,000 steps the value's correlation with the return was 0.12. Read
    this way it was 0.67.
    """
    image, sums = picture
    of_frames = tf.cast(tf.reshape(sums, [-1, sums.shape[-1] // 2, 2]), tf.float64)
    means = tf.reduce_sum(of_frames, 1) / image.shape[1:].num_elements()
    mean, square = tf.unstack(means[:, :, None, None, None], axis=1)
    # In float64, since for a bright picture both terms are large and nearly equal. 1 is added for
    # pictures whose pixels are all equal.
    scale = tf.math.rsqrt(square - mean**2 + 1.0)
    return (_fused_scaled if fused else _scaled)(
        image, tf.cast(mean, tf.float32), tf.cast(scale, tf.float32), dtype
    )


def _scaled(image: tf.Tensor, mean: tf.Tensor, scale: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the image's differences from the mean, times the scale."""
    return tf.cast((tf.cast(image, tf.float32) - mean) * scale, dtype)


def _difference(image: tf.Tensor, mean: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return each image's differences from the mean image, divided by their root mean square.

    Divided by the deviation of the image instead, the differences of Breakout would be ten times
    smaller than other inputs.
    """
    difference = tf.cast(image, tf.float32) - mean
    size = image.shape[1:].num_elements()
    # XLA takes 0.2 to 0.7 of the time for two means, of which the first is of at most 32 numbers.
    folds = max(n for n in range(1, 33) if size % n == 0)
    folded = tf.reduce_mean(tf.reshape(tf.square(difference), [-1, folds, size // folds]), 1)
    square = tf.reduce_mean(folded, 1)[:, None, None, None]
    return tf.cast(difference * tf.math.rsqrt(square + 1.0), dtype)


# XLA makes one pass over the pictures where TensorFlow's operations make four, and a learner's
# batch is larger than the processor's caches. Only learners on a CPU use it: a GPU gains little,
# and a program that serves an exported model may have no XLA.
_fused_scaled = tf.function(_scaled, autograph=False, jit_compile=True)
_fused_difference = tf.function(_difference, autograph=False, jit_compile=True)


def _sizes(x: tf.Tensor) -> list[Any]:
    """Return the sizes of the axes, as numbers where they are known, so that shapes stay static."""
    dynamic = tf.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
