"""Distributions over vectors of D numbers: normal ones, unbounded or within bounds.

Both distributions within bounds are mixtures: a number is at a bound with a probability, and
between the bounds it has a density. `log_prob` returns the logarithm of whichever applies, so the
ratio of two policies' probabilities, which V-trace and PPO need, is right at the bounds as well.
Treating a clipped action as if it had the normal density would not be.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_LOG_ROOT = 0.5 * math.log(2 * math.pi)
_EDGE = 2.0**-20  # width of the interval below 1 that counts as being at the bound
_LAST = math.atanh(1 - _EDGE)  # the number whose hyperbolic tangent is at its inner end
# Gauss-Hermite quadrature of expectations under a standard normal distribution.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclasses.dataclass(frozen=True, eq=False)
class Normal:
    """D independent normal distributions."""

    mean: tf.Tensor  # float [..., D]
    deviation: tf.Tensor  # float [..., D]: the standard deviation, above 0

    def sample(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Draw one action from each distribution, float [..., D].

        It is made of `noise`, standard normal numbers of this shape, or of numbers drawn here.
        """
        if noise is None:
            noise = tf.random.normal(tf.shape(self.mean), dtype=self.mean.dtype)
        return self.mean + self.deviation * tf.cast(noise, self.mean.dtype)

    def mode(self) -> tf.Tensor:
        """Return the means, [..., D]."""
        return tf.identity(self.mean)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-densities [...] of `actions`, [..., D]."""
        return tf.reduce_sum(self.log_densities(actions), -1)

    def log_densities(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-density of each number, [..., D]."""
        scores = (tf.cast(actions, self.mean.dtype) - self.mean) / self.deviation
        return -0.5 * tf.square(scores) - tf.math.log(self.deviation) - _LOG_ROOT

    def entropy(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Return the entropies [...] of the densities, in nats; `noise` is not needed."""
        del noise
        return tf.reduce_sum(tf.math.log(self.deviation) + _LOG_ROOT + 0.5, -1)

    def kl(self, other: "Normal") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`."""
        ratios = self.deviation / other.deviation
        distances = (self.mean - other.mean) / other.deviation
        each = 0.5 * (tf.square(ratios) + tf.square(distances) - 1) - tf.math.log(ratios)
        return tf.reduce_sum(each, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class TanhNormal:
    """The hyperbolic tangents of D independent normal distributions: numbers in [-1, 1].

    An action further from 0 than 1 - 2**-20 is rounded to 1 or -1, since float32 could not tell
    from which number it came. Its density is the probability of all numbers that are rounded to it,
    divided by 2**-20.
    """

    mean: tf.Tensor  # float [..., D], before the hyperbolic tangent
    deviation: tf.Tensor  # float [..., D]

    @property
    def _normal(self) -> Normal:
        return Normal(self.mean, self.deviation)

    def sample(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Draw one action from each distribution, float [..., D], as `Normal.sample` does."""
        drawn = tf.tanh(self._normal.sample(noise))
        return tf.where(tf.abs(drawn) > 1 - _EDGE, tf.sign(drawn), drawn)

    def mode(self) -> tf.Tensor:
        """Return the medians, [..., D]: where the density is largest at both bounds, no mode is."""
        return tf.tanh(self.mean)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-densities [...] of `actions`, [..., D]."""
        inside = tf.abs(actions) <= 1 - _EDGE
        safe = tf.where(inside, actions, tf.zeros_like(actions))
        slopes = tf.math.log1p(safe) + tf.math.log1p(-safe)  # of the hyperbolic tangent, as a log
        densities = self._normal.log_densities(tf.atanh(safe)) - slopes
        beyond = log_ndtr((tf.sign(actions) * self.mean - _LAST) / self.deviation)
        return tf.reduce_sum(tf.where(inside, densities, beyond - math.log(_EDGE)), -1)

    def entropy(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Return the entropies [...] of the densities before rounding, in nats.

        The mean logarithm of the slope of the hyperbolic tangent is found by quadrature, or is that
        of the one number that `noise` makes (see `Normal.sample`). Rounded numbers would hide from
        the gradient how far beyond the bound the mean is.
        """
        if noise is not None:
            slopes = _log_slope(self._normal.sample(noise))
        else:
            nodes = tf.constant(_NODES, self.mean.dtype)
            each = _log_slope(self.mean[..., None] + self.deviation[..., None] * nodes)
            slopes = tf.reduce_sum(each * tf.constant(_WEIGHTS, each.dtype), -1)
        return self._normal.entropy() + tf.reduce_sum(slopes, -1)

    def kl(self, other: "TanhNormal") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`."""
        return self._clipped.kl(other._clipped)

    @property
    def _clipped(self) -> "ClippedNormal":
        """The numbers before the hyperbolic tangent, those that are rounded to a bound as one."""
        return ClippedNormal(self.mean, self.deviation, np.array(-_LAST), np.array(_LAST))


def decoupled_kl(old: Any, new: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the divergences of the means and of the deviations alone, [..., D] each.

    They are KL(old || N) for two distributions N, which differ from `old` in the mean, or in the
    deviation, and have that of `new` there. Bounds do not count: of a TanhNormal or ClippedNormal,
    both are the divergences of the numbers before them.
    """
    ratios = old.deviation / new.deviation
    of_means = 0.5 * tf.square((new.mean - old.mean) / old.deviation)
    return of_means, 0.5 * (tf.square(ratios) - 1) - tf.math.log(ratios)


def _log_slope(u: tf.Tensor) -> tf.Tensor:
    """Return the logarithm of 1 - tanh(u) squared, which is exact however large u is."""
    u = tf.abs(u)
    return 2 * (math.log(2) - u - tf.nn.softplus(-2 * u))


@dataclasses.dataclass(frozen=True, eq=False)
class ClippedNormal:
    """D independent normal distributions whose numbers are clipped to bounds.

    A number is at a bound with the probability of all numbers beyond it.
    """

    mean: tf.Tensor  # float [..., D]
    deviation: tf.Tensor  # float [..., D]
    low: np.ndarray  # [D]; may be -inf
    high: np.ndarray  # [D]; may be inf

    @property
    def _normal(self) -> Normal:
        return Normal(self.mean, self.deviation)

    def sample(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Draw one action from each distribution, float [..., D], as `Normal.sample` does."""
        return self._clip(self._normal.sample(noise))

    def mode(self) -> tf.Tensor:
        """Return the means, clipped, [..., D]."""
        return self._clip(self.mean)

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """Return the log-probabilities [...] of `actions`, [..., D]."""
        low, high = self._tails()
        each = self._normal.log_densities(actions)
        each = tf.where(actions <= tf.cast(self.low, actions.dtype), low.log_probs, each)
        each = tf.where(actions >= tf.cast(self.high, actions.dtype), high.log_probs, each)
        return tf.reduce_sum(each, -1)

    def entropy(self, noise: tf.Tensor | None = None) -> tf.Tensor:
        """Return the entropies [...] in nats: of the probabilities and of the density between.

        It is exact, without `noise`.
        """
        del noise
        low, high = self._tails()
        within = self._within(low, high)
        density = within.mass * (tf.math.log(self.deviation) + _LOG_ROOT) + 0.5 * within.square
        tails = low.probs * low.log_probs + high.probs * high.log_probs
        return tf.reduce_sum(density - tails, -1)

    def kl(self, other: "ClippedNormal") -> tf.Tensor:
        """Return the Kullback-Leibler divergences [...] to `other`, with the same bounds."""
        mine, theirs = self._tails(), other._tails()
        within = self._within(*mine)
        apart = (self.mean - other.mean) / other.deviation
        ratio = self.deviation / other.deviation
        squares = ratio**2 * within.square + 2 * ratio * apart * within.first
        squares += apart**2 * within.mass
        each = 0.5 * (squares - within.square) - within.mass * tf.math.log(ratio)
        for tail, other_tail in zip(mine, theirs, strict=True):
            each += tail.probs * (tail.log_probs - other_tail.log_probs)
        # None is negative but by rounding: that of the mass, times the square of a large distance.
        return tf.reduce_sum(tf.maximum(each, 0.0), -1)

    def _clip(self, numbers: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(
            numbers, tf.cast(self.low, numbers.dtype), tf.cast(self.high, numbers.dtype)
        )

    def _tails(self) -> tuple["_Tail", "_Tail"]:
        """Return what lies beyond the lower and the upper bound."""
        return _tail(self.mean, self.deviation, self.low, 1), _tail(
            -self.mean, self.deviation, -self.high, -1
        )

    def _within(self, low: "_Tail", high: "_Tail") -> "_Moments":
        """Return the moments of the standardised numbers between the bounds."""
        return _Moments(
            1 - low.probs - high.probs,
            low.densities - high.densities,
            1 - low.probs - high.probs + low.weighted - high.weighted,
        )


class _Tail(NamedTuple):
    """The numbers beyond a bound, [..., D]; zeros where the bound is infinite."""

    probs: tf.Tensor  # probability of these numbers
    log_probs: tf.Tensor  # its logarithm; 0 where there is no bound
    densities: tf.Tensor  # the standard normal density at the standardised bound
    weighted: tf.Tensor  # this density times the standardised bound


class _Moments(NamedTuple):
    """Integrals of the standard normal density between bounds, [..., D]."""

    mass: tf.Tensor  # of 1
    first: tf.Tensor  # of z
    square: tf.Tensor  # of z squared


def _tail(mean: tf.Tensor, deviation: tf.Tensor, bound: np.ndarray, side: int) -> _Tail:
    """Return what lies below `bound`; `side` is -1 if all is mirrored, which turns signs back."""
    known = np.isfinite(bound)
    z = (tf.cast(np.where(known, bound, 0), mean.dtype) - mean) / deviation
    log_probs = tf.where(known, log_ndtr(z), 0)
    density = tf.where(known, tf.exp(-0.5 * tf.square(z) - _LOG_ROOT), 0)
    return _Tail(tf.where(known, tf.exp(log_probs), 0), log_probs, density, side * z * density)


def log_ndtr(x: tf.Tensor) -> tf.Tensor:
    """Return the logarithm of the standard normal distribution function, exact in both tails."""
    far = x < -8
    xs = tf.where(far, tf.zeros_like(x), x)
    root = math.sqrt(0.5)
    upper = tf.math.log1p(-0.5 * tf.math.erfc(root * tf.maximum(xs, 0)))
    lower = tf.math.log(0.5 * tf.math.erfc(-root * tf.minimum(xs, 0)))
    # The asymptotic series, whose error is below 1e-6 there.
    y = tf.where(far, x, -8 * tf.ones_like(x))
    inverse = 1 / tf.square(y)
    series = -inverse * (1 - inverse * (3 - inverse * (15 - 105 * inverse)))
    tail = -0.5 * tf.square(y) - _LOG_ROOT - tf.math.log(-y) + tf.math.log1p(series)
    return tf.where(far, tail, tf.where(xs > 0, upper, lower))
