"""One curve as inline SVG for `report.py`; the page's style colours it, and it needs no script.

Its points follow as JSON; report.js reads them to show the value under the pointer.
"""

import html
import json
import math

import numpy as np
from plot_style import format_number, format_ticks
from run_series import Curve

WIDTH, HEIGHT = 400, 205
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 20, 10, 38  # least margins around the plot
_CHARACTER = 8  # width of a character of a label, at most


def choose_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round numbers within [low, high]."""
    if high <= low:
        return [low]
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(s * size for s in (1, 2, 2.5, 5, 10, 20) if (high - low) / (s * size) < most)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def draw_chart(
    curve: Curve, title: str, x_title: str, unit: float = 1.0, share: bool = False
) -> str:
    """Return the curve as HTML; `unit` is the number of seconds, or frames, per unit of x."""
    x = curve.x / unit
    low, high = 0.0, 1.0
    if not share:
        low, high = _padded_range(float(curve.low.min()), float(curve.high.max()))
    begin, end = float(min(0.0, x[0])), float(x[-1]) or 1.0
    x_ticks, y_ticks = choose_ticks(begin, end, 6), choose_ticks(low, high, 5)
    x_labels, y_labels = format_ticks(x_ticks), format_ticks(y_ticks)
    left = max(_LEFT, 8 + _CHARACTER * max(map(len, y_labels)))
    right = WIDTH - max(_RIGHT, _CHARACTER * max(map(len, x_labels)) // 2)
    bottom = HEIGHT - _BOTTOM

    def x_position(value: float) -> float:
        return round(left + (value - begin) / (end - begin) * (right - left), 1)

    def y_position(value: float) -> float:
        return round(bottom - (value - low) / (high - low) * (bottom - _TOP), 1)

    def text(x: float, y: float, anchor: str, content: str) -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(content)}</text>'

    def line(kind: str, y: float) -> str:
        return f'<line class="{kind}" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'

    parts = [line("grid", y_position(value)) for value in y_ticks]
    parts += [
        text(left - 6, y_position(value) + 4, "end", label)
        for value, label in zip(y_ticks, y_labels, strict=True)
    ]
    parts += [
        text(x_position(value), bottom + 17, "middle", label)
        for value, label in zip(x_ticks, x_labels, strict=True)
    ]
    parts += [line("axis", bottom), text((left + right) / 2, HEIGHT - 4, "middle", x_title)]
    upper = [f"{x_position(a)},{y_position(b)}" for a, b in zip(x, curve.high, strict=True)]
    lower = [f"{x_position(a)},{y_position(b)}" for a, b in zip(x, curve.low, strict=True)]
    if (curve.high > curve.low).any():
        parts.append(f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"/>')
    line_points = [f"{x_position(a)},{y_position(b)}" for a, b in zip(x, curve.mean, strict=True)]
    parts.append(f'<polyline class="line" points="{" ".join(line_points)}"/>')
    end_x, end_y = line_points[-1].split(",")
    parts.append(f'<circle class="dot" cx="{end_x}" cy="{end_y}" r="3"/>')
    points = [
        [x_position(a), y_position(b), _round_digits(float(a)), _round_digits(float(b))]
        for a, b in zip(x, curve.mean, strict=True)
    ]
    first, last = format_number(float(curve.mean[0])), format_number(float(curve.mean[-1]))
    description = f"{title}: {first} at the start, {last} at the end"
    return (
        f'<div class="chart"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(description)}">{"".join(parts)}</svg>'
        f'<script type="application/json">{json.dumps({"x": x_title, "points": points})}</script>'
        "</div>"
    )


def _padded_range(low: float, high: float) -> tuple[float, float]:
    """Return the range with room above and below."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _round_digits(value: float) -> float:
    return float(f"{value:.5g}") if np.isfinite(value) else 0.0
