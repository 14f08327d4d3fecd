"""Normalised observations, images and rewards, for any algorithm, by three flags.

--normalize_observations, --subtract_mean_image and --normalize_rewards.

An algorithm makes one `Normaliser`, reads all entries through it, and lets it learn from each batch
once the algorithm has trained on it:

    self._normaliser = normalisers.Normaliser(config, environment.observation)
    networks.make_network(config, environment, self._normaliser.mean)
    ...          Variables: its `carried` are among carried and weights, its `acting` among acting
    returns, state = self._normaliser.split(core_state)         in act and judge
    entry = self._normaliser.read(entry)                        what the network and the loss read
    self._normaliser.update(batch, overlap, exchange)           at the end of an update

The statistics are those of all entries that all learners have trained on, each counted once however
often it is replayed. They are equal on all learners, and kept in float64. Actors receive what they
need to read entries, in float32. Images are not read here: networks get their `mean`. If all flags
are off, a normaliser has no variables, and it only scales and clips rewards.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.parts import losses, vtrace
from impala_mm.config import auto
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer

LARGEST = 10.0  # standard deviations to which normalised observations and rewards are clipped
_SMALL = 1e-8  # added to variances, against a division by 0


class Moments:
    """The mean and variance of all vectors [D] that the learners have seen, in float64.

    With a `memory`, they follow the newest vectors, about that many: each counts less the more
    have come since. With `apart`, each of the D numbers is counted by itself.
    """

    def __init__(self, size: int, name: str, memory: float = math.inf, apart: bool = False):
        self._name, self._memory = name, memory
        # A float64 counts exactly up to 9e15 and does not overflow beyond.
        self.count = _variable(tf.zeros([size] if apart else [], tf.float64), f"{name}_count")
        self.mean = _variable(tf.zeros([size], tf.float64), f"{name}_mean")
        self.variance = _variable(tf.zeros([size], tf.float64), f"{name}_variance")
        self.variables = [self.count, self.mean, self.variance]

    def update(self, values: tf.Tensor, counted: tf.Tensor, exchange: GradientReducer) -> None:
        """Merge the vectors [N, D] where `counted`, [N] or [N, D], is true, of all learners.

        The variance is merged by Chan's formula, so that N learners with a share each hold what one
        with all vectors would. If any number is not finite, on any learner, nothing changes.
        """
        counted = counted if counted.shape.rank == 2 else counted[:, tf.newaxis]
        values = tf.where(counted, tf.cast(values, tf.float64), 0.0)
        count = tf.reduce_sum(tf.cast(counted, tf.float64), 0)  # [1] or [D]
        sums = tf.concat([count, tf.reduce_sum(values, 0)], 0)
        sums = exchange.mean(sums, name=f"{self._name}.sums") * exchange.group.size
        apart = self.count.shape.rank
        count = sums[: counted.shape[1]] if apart else sums[0]
        mean = tf.math.divide_no_nan(sums[counted.shape[1] :], count)
        # Squared differences from the mean of all learners, and not squares, which would lose the
        # variance of values that are far from 0.
        squares = tf.reduce_sum(tf.where(counted, tf.square(values - mean), 0.0), 0)
        squares = exchange.mean(squares, name=f"{self._name}.squares") * exchange.group.size
        variance = tf.math.divide_no_nan(squares, count)
        total = tf.minimum(self.count + count, tf.constant(self._memory, tf.float64))
        share, moved = tf.math.divide_no_nan(count, total), mean - self.mean
        share = tf.minimum(share, 1.0)
        after = (
            total,
            self.mean + share * moved,
            (1.0 - share) * (self.variance + share * tf.square(moved)) + share * variance,
        )
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in after])
        for variable, value in zip(self.variables, after, strict=True):
            variable.assign(tf.where(finite, value, variable))

    def scale(self) -> tf.Tensor:
        """Return the factors [D] by which values get a standard deviation of 1, in float32.

        A number that has never changed, such as a reward before the first one, keeps its size.
        """
        factors = tf.where(self.variance > 0.0, tf.math.rsqrt(self.variance + _SMALL), 1.0)
        return tf.cast(factors, tf.float32)


class Normaliser:
    """A reader of entries: it normalises them if the flags say so, and clips rewards."""

    def __init__(self, config: Config, observation: Any):
        """Normalise `observation`, the spec of one observation or a nest of specs."""
        self._clipping, self._discounting = config.reward_clipping, config.discounting
        self._largest, self._scaling = config.max_abs_reward, config.reward_scaling
        self._observations = _Observations(observation) if config.normalize_observations else None
        self._rewards = _Rewards() if config.normalize_rewards else None
        self._images = _Images(observation) if config.subtract_mean_image else None
        self.mean: Any = self._images.mean if self._images else None  # see `nets.make`
        parts = [part for part in (self._observations, self._rewards, self._images) if part]
        self.acting: list[tf.Variable] = [v for part in parts for v in part.acting]
        statistics = [v for part in parts for v in part.statistics]
        self.carried: list[tf.Variable] = [*statistics, *self.acting]

    def read(self, entry: Entry) -> Entry:
        """Return entries [...] with normalised observations and rewards, which are also clipped.

        Only observation and reward change. Rewards are normalised, then limited to
        --max_abs_reward, then multiplied by --reward_scaling, then clipped by --reward_clipping.
        """
        observation, reward = entry.observation, entry.reward
        if self._observations:
            observation = self._observations.read(observation)
        if self._rewards:
            reward = tf.clip_by_value(reward * self._rewards.scale, -LARGEST, LARGEST)
        if self._largest < math.inf:
            reward = tf.clip_by_value(reward, -self._largest, self._largest)
        if self._scaling != 1:
            reward = reward * self._scaling
        return entry._replace(
            observation=observation, reward=losses.clip_reward(reward, self._clipping)
        )

    def initial_state(self, state: Any, batch: int | tf.Tensor) -> Any:
        """Return the state at an episode's start: the network's `state`, and what is added to it.

        To normalise rewards, each environment's discounted return so far is kept. It is a part of
        the core state, so the actor keeps it from unroll to unroll, and `Batch.start` holds it.
        """
        return self.join(tf.zeros([batch]) if self._rewards else (), state)

    def start_after(self, entries: Entry, state_after: Callable[[Entry], Any]) -> Any:
        """Return the core state of an unroll that follows entries [N, B, ...].

        `state_after` returns the network's; the discounted return so far is unknown, and 0.
        """
        return self.initial_state(state_after(self.read(entries)), tf.shape(entries.first)[1])

    def split(self, core_state: Any) -> tuple[Any, Any]:
        """Return (the discounted returns so far, or (), and the network's state)."""
        return core_state if self._rewards else ((), core_state)

    def join(self, returns: Any, state: Any) -> Any:
        """Return the core state of which `split` returns these parts."""
        return (returns, state) if self._rewards else state

    def step(self, entry: Entry, returns: Any) -> Any:
        """Return the discounted returns after entries [B, ...], which are as the actor has them."""
        if not self._rewards:
            return ()
        return tf.where(entry.first, 0.0, self._discounting * returns + entry.reward)

    def update(self, batch: Batch, overlap: int, exchange: GradientReducer) -> None:
        """Learn from the new entries of the columns that count as played (see `Batch.fresh`).

        Call it after the batch was trained on, since it changes what `read` returns.
        """
        entries = batch.unrolls
        new = tf.nest.map_structure(lambda x: x[overlap:], (entries.observation, entries.first))
        played = batch.fresh & (batch.weight > 0)
        counted = tf.broadcast_to(played, tf.shape(new[1]))  # [T, B]
        if self._observations:
            self._observations.update(new[0], counted, exchange)
        if self._images:
            self._images.update(new[0], counted, exchange)
        if self._rewards:
            returns = discounted_returns(
                entries.reward, entries.first, self.split(batch.start)[0], self._discounting
            )
            self._rewards.update(returns[overlap:], counted & ~new[1], exchange)


class _Observations:
    """The statistics of the numbers in observations: parts that are float and not images.

    All these parts together are one vector [D]. Integers, such as bytes, remain as they are.
    """

    def __init__(self, observation: Any):
        self._leaves = tf.nest.flatten(observation)
        self._sizes = [leaf.shape.num_elements() * _is_vector(leaf) for leaf in self._leaves]
        size = sum(self._sizes)
        self.moments = Moments(size, "observation")
        self.statistics = self.moments.variables
        self._mean = _variable(tf.zeros([size]), "observation_offset")
        self._scale = _variable(tf.ones([size]), "observation_scale")
        self.acting = [self._mean, self._scale]

    def read(self, observation: Any) -> Any:
        """Return observations [...] with a mean of 0 and a deviation of 1, clipped."""
        means, scales = tf.split(self._mean, self._sizes), tf.split(self._scale, self._sizes)
        read = [
            _normalised(part, tf.reshape(mean, spec.shape), tf.reshape(scale, spec.shape))
            if _is_vector(spec)
            else part
            for spec, part, mean, scale in zip(
                self._leaves, tf.nest.flatten(observation), means, scales, strict=True
            )
        ]
        return tf.nest.pack_sequence_as(observation, read)

    def update(self, observation: Any, counted: tf.Tensor, exchange: GradientReducer) -> None:
        """Merge observations [T, B, ...] for which `counted` [T, B] is true."""
        rows = tf.size(counted)
        leaves = zip(tf.nest.flatten(observation), self._sizes, strict=True)
        parts = [tf.reshape(leaf, [rows, size]) for leaf, size in leaves if size]
        if not parts:
            return
        self.moments.update(tf.concat(parts, 1), tf.reshape(counted, [-1]), exchange)
        self._mean.assign(tf.cast(self.moments.mean, tf.float32))
        self._scale.assign(tf.where(self.moments.count > 0, self.moments.scale(), self._scale))


class _Images:
    """The mean of each image of bytes in observations, in float32, which networks subtract.

    In Breakout 99% of the variance of pixels never changes: walls and bricks. A convolution's
    outputs are then nearly constant, and a baseline that learns its first values pushes them all
    down, below the ReLU.
    """

    def __init__(self, observation: Any):
        self._leaves = tf.nest.flatten(observation)
        self._shapes = [leaf.shape for leaf in self._leaves if auto.is_image(leaf)]
        if not self._shapes:
            specs = ", ".join(f"{x.dtype.name} {x.shape.as_list()}" for x in self._leaves)
            raise UserMistake(
                f"--subtract_mean_image: the observations, {specs}, contain no image of bytes "
                f"(uint8 [height, width, channels]): give --subtract_mean_image=false"
            )
        self._count = _variable(tf.zeros([], tf.float64), "image_count")
        self.statistics = [self._count]
        self.acting = [_variable(tf.zeros(shape), "mean_image") for shape in self._shapes]
        means = iter(self.acting)
        self.mean = tf.nest.map_structure(
            lambda leaf: next(means) if auto.is_image(leaf) else tf.zeros(leaf.shape), observation
        )

    def update(self, observation: Any, counted: tf.Tensor, exchange: GradientReducer) -> None:
        """Merge observations [T, B, ...] for which `counted` [T, B] is true, of all learners."""
        weights = tf.cast(counted, tf.float32)
        leaves = zip(self._leaves, tf.nest.flatten(observation), strict=True)
        sums = [
            tf.reshape(tf.einsum("tb,tbhwc->hwc", weights, tf.cast(image, tf.float32)), [-1])
            for spec, image in leaves
            if auto.is_image(spec)
        ]
        joined = tf.concat([[tf.reduce_sum(weights)], *sums], 0)
        joined = exchange.mean(joined, name="images.sums") * exchange.group.size
        new, *sums = tf.split(joined, [1, *(shape.num_elements() for shape in self._shapes)])
        self._count.assign_add(tf.cast(new[0], tf.float64))
        share = tf.math.divide_no_nan(new, tf.cast(self._count, tf.float32))
        for mean, image, shape in zip(self.acting, sums, self._shapes, strict=True):
            newest = tf.reshape(tf.math.divide_no_nan(image, new), shape)
            mean.assign_add(share * (newest - mean))


class _Rewards:
    """The statistics of discounted returns, by whose standard deviation rewards are divided.

    A reward alone says little about the size of the values that the baseline must learn; the
    deviation of discounted returns is that size, whatever the discount and the unroll length.
    """

    def __init__(self) -> None:
        self.moments = Moments(1, "return")
        self.statistics = self.moments.variables
        self.scale = _variable(tf.ones([]), "reward_scale")
        self.acting = [self.scale]

    def update(self, returns: tf.Tensor, counted: tf.Tensor, exchange: GradientReducer) -> None:
        """Merge returns [T, B] for which `counted` [T, B] is true."""
        rows = tf.reshape(returns, [-1, 1])
        self.moments.update(rows, tf.reshape(counted, [-1]), exchange)
        scale = self.moments.scale()[0]
        self.scale.assign(tf.where(self.moments.count > 0, scale, self.scale))


def discounted_returns(
    reward: tf.Tensor, first: tf.Tensor, before: tf.Tensor, discounting: float
) -> tf.Tensor:
    """Return each entry's discounted sum of the episode's rewards so far, [T, B].

    `reward` and `first` are [T, B]; `before` [B] is the sum before entry 0. A sum starts with the
    reset of an episode: return_t = reward_t + discounting x return_{t-1}, and 0 where `first`.
    """
    factors = tf.where(first, 0.0, tf.cast(discounting, tf.float32))
    return sums_so_far(tf.where(first, 0.0, reward), factors, before)


def sums_so_far(terms: tf.Tensor, factors: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Return s_t = terms_t + factors_t s_{t-1}, [T, B], from `before` [B], which precedes them."""
    terms = tf.concat([tf.reverse(terms, [0]), before[tf.newaxis]], 0)
    factors = tf.concat([tf.reverse(factors, [0]), tf.zeros_like(before)[tf.newaxis]], 0)
    return tf.reverse(vtrace.discounted_suffix_sums(terms, factors)[:-1], [0])


def _is_vector(leaf: tf.TensorSpec) -> bool:
    """Return whether a part of an observation is normalised: numbers, but not an image."""
    return leaf.dtype.is_floating and leaf.shape.rank != 3


def _normalised(part: tf.Tensor, mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value((part - mean) * scale, -LARGEST, LARGEST)


def _variable(value: tf.Tensor, name: str) -> tf.Variable:
    return tf.Variable(value, trainable=False, name=name)
