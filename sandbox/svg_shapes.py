"""The shapes of the diagrams of the pages, as SVG; those in draw.py and beside it use them."""

BLUE, GREEN, GRAY, INK = "#d7e6fb", "#dcf3df", "#f1f1f1", "#1c2733"
_STYLE = f"""
  text {{ font: 14px sans-serif; fill: {INK}; text-anchor: middle; }}
  .small {{ font-size: 12px; }}
  rect {{ stroke: {INK}; rx: 8; }}
  path {{ stroke: {INK}; stroke-width: 1.5; fill: none; }}
  .dashed {{ stroke-dasharray: 5 4; stroke: #7a8794; }}
"""


def draw_box(x: int, y: int, width: int, fill: str, title: str, *lines: str) -> str:
    """Return a box with a title and lines below it; x is its middle."""
    texts = [f'<text x="{x}" y="{y + 24}" font-weight="bold">{title}</text>']
    texts += [
        f'<text class="small" x="{x}" y="{y + 44 + 17 * i}">{line}</text>'
        for i, line in enumerate(lines)
    ]
    height = 38 + 17 * len(lines)
    left = x - width // 2
    return f'<rect x="{left}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>' + "".join(
        texts
    )


def draw_arrow(path: str, both: bool = False, kind: str = "") -> str:
    """Return an arrow along a path of SVG."""
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<path class="{kind}" d="{path}" marker-end="url(#tip)"{start}/>'


def draw_label(x: int, y: int, text: str) -> str:
    """Return a line of small text around x."""
    return f'<text class="small" x="{x}" y="{y}">{text}</text>'


def make_svg(title: str, width: int, height: int, parts: list[str]) -> str:
    """Return the picture with the style that its parts need."""
    tip = (
        '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse">'
        f'<path d="M 0 0 L 10 5 L 0 10 z" style="fill:{INK}"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{tip}</defs>",
            f'<rect width="{width}" height="{height}" fill="white" style="stroke:none"/>',
            *parts,
            "</svg>\n",
        ]
    )


def draw_lane(begin: int, top: int, end: int, fill: str, text: str) -> str:
    """Return a part of a bar along time, from `begin` to `end`."""
    middle = (begin + end) // 2
    return (
        f'<rect x="{begin}" y="{top}" width="{end - begin}" height="48" fill="{fill}" '
        f'style="rx:0"/>{draw_label(middle, top + 29, text)}'
    )
