"""How the pictures of this project look: matplotlib set up once, its colours, and numbers on axes.

Drawn with by `plot.py`, `record.py` and `benchmarks/scaling.py`. The same data make the same file.
"""

import re
from pathlib import Path
from typing import Any

# Told apart by colour-blind readers, too, and of about the same weight on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#56b4e9", "#b8860b", "#333333", "#882255")
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
    "font.sans-serif": ["DejaVu Sans", "Arial"],  # the list is written beside each word
    "font.size": 9,
    "grid.color": "#e6eaee",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "impala_mm",  # the same curves, the same file
    "text.color": "#1c2733",
    "xtick.color": _GRAY,
    "xtick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.color": _GRAY,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0,
}


def pyplot() -> Any:
    """Imports matplotlib.pyplot, and sets this style; no display is needed."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("agg")
    from cycler import cycler  # noqa: PLC0415
    from matplotlib import pyplot  # noqa: PLC0415

    matplotlib.rcParams.update(_STYLE | {"axes.prop_cycle": cycler(color=COLOURS)})
    return pyplot


def save_figure(figure: Any, *paths: Path) -> None:
    """Writes it to each path, in the format that the path's ending says, and closes it."""
    for path in paths:
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=150, metadata=metadata)
        if path.suffix == ".svg":
            path.write_text(_PATH.sub(_shorten_numbers, path.read_text()))
    pyplot().close(figure)


def _shorten_numbers(path: re.Match) -> str:
    """Cuts numbers to hundredths of a point: the rest cannot be seen, and is half of the file."""
    return _DIGITS.sub(r"\1", path[0]).replace(" \n", " ")


def format_number(value: float, _: Any = None) -> str:
    """Formats a number as axes and tables have it: 12.5M, 400k, 0.0008."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.99995:
            return f"{value / size:.4g}{letter}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.4g}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Returns the unit in which so many seconds read best: (its seconds, its name)."""
    if seconds < 180:
        return 1.0, "s"
    return (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")
