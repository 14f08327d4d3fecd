"""Statistics of the returns of many games, and plain tables; pure functions.

`games` measures the returns; `results` prints these numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from impala_mm.environments.types import ReferenceScores

_TRIMMED = 0.25  # share that the interquartile mean leaves out on each side


class Summary(NamedTuple):
    """The statistics of one quantity over games."""

    mean: float
    median: float
    deviation: float  # sample standard deviation (n - 1); NaN for a single value
    least: float
    most: float


def summarise(values: Sequence[float]) -> Summary:
    """Return the statistics of one or more values."""
    array = np.asarray(values, np.float64)
    deviation = float(array.std(ddof=1)) if len(array) > 1 else float("nan")
    return Summary(
        float(array.mean()),
        float(np.median(array)),
        deviation,
        float(array.min()),
        float(array.max()),
    )


def normalised(values: Sequence[float], scores: ReferenceScores) -> list[float]:
    """Return values human-normalised: 0 is a random policy's mean, 1 a human's."""
    return [(value - scores.random) / (scores.human - scores.random) for value in values]


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and highest quarter, each rounded down to full values."""
    array = np.sort(np.asarray(values, np.float64))
    cut = int(_TRIMMED * len(array))
    return float(array[cut : len(array) - cut].mean())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text table whose first column is left-aligned and the others right-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float) -> str:
    """Return a number as text for a table; "-" for NaN."""
    return "-" if np.isnan(value) else f"{value:,.2f}"
