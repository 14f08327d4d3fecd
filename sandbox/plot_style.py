"""The appearance of all figures: matplotlib's settings, the colours, and the formats of numbers.

`results/`, `algorithm_pictures.py` and `benchmarks/` draw with it. The same data produce the same
file.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Colour-blind readers can tell these apart; all are about equally dark on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#b8860b", "#333333", "#882255")
_MOST_DIGITS = 10  # digits that a tick's label may have in addition
_GRAY = "#5f6b76"
_PATH, _DIGITS = re.compile(r' d="[^"]*"'), re.compile(r"(\.\d\d)\d+")
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#c3cad1",
    "axes.grid": True,
    "axes.labelcolor": _GRAY,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.titlesize": 12,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial"],  # short: SVG repeats the list for each text
    "font.size": 9,
    "grid.color": "#e6eaee",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "impala_mm",  # makes the file depend on the curves alone
    "text.color": "#1c2733",
    "xtick.color": _GRAY,
    "xtick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.color": _GRAY,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0,
}


def pyplot() -> Any:
    """Import matplotlib.pyplot and apply this style; no display is needed."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("agg")
    from cycler import cycler  # noqa: PLC0415
    from matplotlib import pyplot  # noqa: PLC0415

    matplotlib.rcParams.update(_STYLE | {"axes.prop_cycle": cycler(color=COLOURS)})
    return pyplot


def save_figure(figure: Any, *paths: Path) -> None:
    """Save a figure to each path, in the format of the path's suffix, and close it."""
    for path in paths:
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=150, metadata=metadata)
        if path.suffix == ".svg":
            path.write_text(_PATH.sub(_shorten_numbers, path.read_text()))
    pyplot().close(figure)


def _shorten_numbers(path: re.Match) -> str:
    """Cut numbers to hundredths of a point: more cannot be seen and would double the file."""
    return _DIGITS.sub(r"\1", path[0]).replace(" \n", " ")


def format_number(value: float, more_digits: int = 0) -> str:
    """Format a number for axes and tables: 12.5M, 400k, 0.0008."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.99995:
            return f"{value / size:.{4 + more_digits}g}{letter}"
    return f"{value:.{(3 if abs(value) < 100 else 4) + more_digits}g}"


def format_ticks(values: Sequence[float]) -> list[str]:
    """Format the ticks of an axis, with as many digits as it takes to tell them apart."""
    labels = [format_number(value) for value in values]
    for more_digits in range(1, _MOST_DIGITS):
        if len(set(labels)) == len(set(values)):
            break
        labels = [format_number(value, more_digits) for value in values]
    return labels


def label_axis(axis: Any) -> None:
    """Let a matplotlib axis label its ticks by `format_ticks`."""
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415

    class Ticks(FuncFormatter):
        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return format_ticks(list(values))

    axis.set_major_formatter(Ticks(lambda value, _: format_number(value)))


def time_unit(seconds: float) -> tuple[float, str]:
    """Choose the unit for a duration and return its length in seconds and its symbol."""
    if seconds < 180:
        return 1.0, "s"
    return (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")
