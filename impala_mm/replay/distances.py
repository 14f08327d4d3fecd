"""Distances between the features of unrolls; the larger, the less alike."""

from collections.abc import Callable

import numpy as np


def l1(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the sum of absolute differences of features [..., F]."""
    return np.abs(a - b).sum(-1)


def l2(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Euclidean distance of features [..., F]."""
    return np.sqrt(np.square(a - b).sum(-1))


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return 1 less the cosine of the angle between features [..., F]: 0 for the same direction.

    Features that are all 0 have no direction: they are at distance 0 from each other, and at 1 from
    all others.
    """
    lengths = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
    product = lengths[0] * lengths[1]
    similarity = np.where(product > 0, (a * b).sum(-1) / np.where(product > 0, product, 1.0), 0.0)
    return np.where((lengths[0] == 0) & (lengths[1] == 0), 0.0, 1.0 - similarity)


def kl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return KL(softmax(a) || softmax(b)) of features [..., F], in nats."""
    first, second = _log_softmax(a), _log_softmax(b)
    return (np.exp(first) * (first - second)).sum(-1)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


# By the values of a part's option `distance`.
DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "l1": l1,
    "l2": l2,
    "cosine": cosine,
    "kl": kl,
}
