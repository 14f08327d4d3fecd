"""What is said of the returns of many games: numbers and tables; pure functions.

`games` measures the returns; `tables` makes texts of these numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from impala_mm.environments.types import ReferenceScores

_TRIMMED = 0.25  # of each side, by the interquartile mean


class Summary(NamedTuple):
    """Of one quantity over games."""

    mean: float
    median: float
    deviation: float  # standard deviation, of a sample (n - 1); NaN of a single one
    least: float
    most: float


def summarise(values: Sequence[float]) -> Summary:
    """Of at least one value."""
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
    """Human-normalised: 0 is what random play gets on average, 1 what a human does."""
    return [(value - scores.random) / (scores.human - scores.random) for value in values]


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter, both rounded down to whole values."""
    array = np.sort(np.asarray(values, np.float64))
    cut = int(_TRIMMED * len(array))
    return float(array[cut : len(array) - cut].mean())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that line up: the first to the left, numbers to the right."""
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
    """As tables show it."""
    return "-" if np.isnan(value) else f"{value:,.2f}"
