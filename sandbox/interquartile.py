"""The interquartile mean of runs and its uncertainty, for comparisons of few seeds.

Both follow "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (Agarwal et al.,
2021) and its library rliable, whose dependencies this project does not need otherwise. Of one task
with few seeds the mean depends on a single lucky run, and the median ignores most of them; the
interquartile mean averages the middle half.
"""

from typing import NamedTuple

import numpy as np


class Band(NamedTuple):
    """The ends of a confidence interval, each [...]."""

    low: np.ndarray
    high: np.ndarray


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of all runs of all tasks, for scores [runs, tasks, ...].

    A quarter of the scores, rounded down, is left out at either end. Scores of several tasks must
    be normalised.
    """
    return _middle_half(scores[None])[0]


def bootstrap_band(
    scores: np.ndarray, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> Band:
    """Return the confidence interval of the interquartile mean of scores [runs, tasks, ...].

    It lies between percentiles of the means of resampled runs. Those of each task are drawn with
    replacement from that task's own (a stratified bootstrap), and a run's scores stay together.
    """
    random = np.random.default_rng(seed)
    runs, tasks = scores.shape[:2]
    drawn = random.integers(runs, size=(samples, runs, tasks))
    means = _middle_half(scores[drawn, np.arange(tasks)])
    ends = 50 * (1 - level), 50 * (1 + level)
    return Band(*np.percentile(means, ends, axis=0))


def _middle_half(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean of each sample, [samples, ...].

    The scores are [samples, runs, tasks, ...].
    """
    samples, runs, tasks = scores.shape[:3]
    ordered = np.sort(scores.reshape(samples, runs * tasks, *scores.shape[3:]), axis=1)
    cut = runs * tasks // 4
    return ordered[:, cut : runs * tasks - cut].mean(axis=1)
