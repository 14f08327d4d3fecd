"""One curve as data in a report's HTML, for the charts that the dashboard has, too.

`report.js` draws it by `launcher/dashboard/static/charts.js`. Where no script runs, a sentence
about the curve remains.
"""

import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from plot_style import format_number
from run_series import Curve

import launcher.dashboard
from impala_mm.records.run_contents import Panel

_STATIC = Path(launcher.dashboard.__file__).parent / "static"


def render_chart(curve: Curve, panel: Panel, is_time: bool) -> str:
    """Return a curve over frames, or over seconds of training, as HTML."""
    content: dict[str, Any] = {
        "title": panel.title,
        "unit": panel.unit,
        "share": panel.share,
        "isTime": is_time,
        "x": _numbers(curve.x),
        "mean": _numbers(curve.mean),
    }
    if (curve.high > curve.low).any():
        content |= {"low": _numbers(curve.low), "high": _numbers(curve.high)}
    first, last = format_number(float(curve.mean[0])), format_number(float(curve.mean[-1]))
    text = f"{panel.title}: {first} at the start, {last} at the end"
    data = json.dumps(content).replace("<", "\\u003c")
    return (
        f'<div class="curve"><script type="application/json">{data}</script>'
        f"<p>{html.escape(text)}</p></div>"
    )


def style() -> str:
    """Return the style of charts, and of all that a report and the dashboard have in common."""
    return _read("uplot/uPlot.min.css") + _read("charts.css")


def scripts(*more: str) -> str:
    """Return the elements of a page that draw its charts; `more` are modules that use them."""
    plain = _read("uplot/uPlot.iife.min.js").partition("\n")[2]  # the first line names its address
    module = "\n".join([_read("charts.js"), *more])
    return (
        f"<script>/* uPlot\n{_read('uplot/LICENSE')}*/\n{plain}</script>"
        f'<script type="module">{module}</script>'
    )


def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _numbers(values: Iterable[Any]) -> list[float | None]:
    """Return numbers with the digits that a chart can show; None for one that is not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
