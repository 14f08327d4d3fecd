"""Formulas as SVG, from the LaTeX that matplotlib knows: they need no font and no script."""

import html
import re
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath

_FONT = FontProperties(math_fontfamily="cm")
_SIZE = 19  # of a letter, in pixels
_COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


def render(source: str, *_: Any, **__: Any) -> str:
    """Return a block of formulas, one on each line, as HTML; raise ValueError for a wrong one."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return f'<div class="formula">{"".join(map(_draw, lines))}</div>'


def _draw(line: str) -> str:
    path = TextPath((0, 0), f"${line}$", size=_SIZE, prop=_FONT)
    box = path.get_extents().padded(1)
    parts = []
    for points, code in path.iter_segments():
        numbers = " ".join(f"{x:.4g} {-y:.4g}" for x, y in points.reshape(-1, 2))
        parts.append(_COMMANDS[code] + numbers if code in _COMMANDS else "Z")
    size = f'viewBox="{box.x0:.1f} {-box.y1:.1f} {box.width:.1f} {box.height:.1f}"'
    name = html.escape(re.sub(r"\s+", " ", line))
    return (
        f'<svg {size} width="{box.width:.0f}" role="img" aria-label="{name}">'
        f'<path d="{"".join(parts)}"/></svg>'
    )
