"""Draws the picture of the processes that the README shows.

python sandbox/draw_processes.py [sandbox/processes.svg]
"""

import sys
from pathlib import Path

_BLUE, _GREEN, _GRAY, _INK = "#d7e6fb", "#dcf3df", "#f1f1f1", "#1c2733"
_STYLE = f"""
  text {{ font: 14px sans-serif; fill: {_INK}; text-anchor: middle; }}
  .small {{ font-size: 12px; }}
  rect {{ stroke: {_INK}; rx: 8; }}
  path {{ stroke: {_INK}; stroke-width: 1.5; fill: none; }}
  .dashed {{ stroke-dasharray: 5 4; stroke: #7a8794; }}
"""


def _box(x: int, y: int, width: int, fill: str, title: str, *lines: str) -> str:
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


def _arrow(path: str, both: bool = False, kind: str = "") -> str:
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<path class="{kind}" d="{path}" marker-end="url(#tip)"{start}/>'


def _label(x: int, y: int, text: str) -> str:
    return f'<text class="small" x="{x}" y="{y}">{text}</text>'


def draw() -> str:
    """The SVG: the frontend on top, learners in the middle, their actors below."""
    learners, actors = (230, 630), (90, 230, 370, 560, 700)
    parts = [
        _box(
            430, 16, 380, _GRAY, "run_experiment_mm_raw.py", "reads a CSV of hosts, starts it all"
        ),
        _box(learners[0], 160, 190, _BLUE, "learner 0", "GPU 0: unrolls to gradients"),
        _box(learners[1], 160, 190, _BLUE, "learner 1", "GPU 1: unrolls to gradients"),
        _arrow("M 327 188 H 533", both=True),
        _label(430, 178, "Horovod: gradients,"),
        _label(430, 206, "all-reduced (mpirun)"),
        _arrow("M 330 71 L 232 158", kind="dashed"),
        _arrow("M 530 71 L 628 158", kind="dashed"),
        _label(430, 122, "tmux here, SSH elsewhere"),
    ]
    for i, x in enumerate(actors):
        learner = learners[0] if i < 3 else learners[1]
        parts.append(_box(x, 330, 120, _GREEN, f"actor {i}", "plays on a CPU"))
        parts.append(_arrow(f"M {x} 329 L {learner + (x - learner) // 3} 217", both=True))
    parts += [
        _label(430, 258, "up: unrolls"),
        _label(430, 276, "down: parameters"),
        _label(430, 294, "(distributed TensorFlow)"),
        _label(400, 412, "a worker set: one learner and its actors; actors come and go"),
    ]
    tip = (
        '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse">'
        f'<path d="M 0 0 L 10 5 L 0 10 z" style="fill:{_INK}"/></marker>'
    )
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 430" role="img">',
            "<title>The processes of impala_mm</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{tip}</defs>",
            '<rect width="860" height="430" fill="white" style="stroke:none"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "processes.svg")
    target.write_text(draw())
    print(f"wrote {target}")
