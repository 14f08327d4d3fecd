"""A report of one run, LOGDIR/report.html: one self-contained file to keep, mail or open anywhere.

It is written from the run's folder alone: the curves of metrics.jsonl, and the sentences and tables
of `summary.py`. The page has the dashboard's charts and loads nothing from elsewhere, except large
videos, which stay in the folder. All text from the folder is escaped.
"""

import base64
import html
import json
import math
import os
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import launcher.dashboard
from impala_mm.records import run_contents
from impala_mm.records.run_contents import PANELS, Panel, is_number
from impala_mm.runtime import provenance
from impala_mm.runtime.timing import format_duration
from sandbox.plot_style import format_number
from sandbox.results import summary
from sandbox.results.runs import Curve, RunSeries, make_curve

_HERE = Path(__file__).resolve().parent
_STATIC = Path(launcher.dashboard.__file__).parent / "static"
_STYLES = _STATIC / "uplot" / "uPlot.min.css", _STATIC / "charts.css", _HERE / "report.css"
_MAX_VIDEO_MB = 5  # MiB; a larger video is linked, not embedded
_MAX_VIDEOS_MB = 20  # MiB of all embedded videos together


def write_report(run: RunSeries) -> Path:
    """Write the report, replacing an earlier one, and return its path."""
    return write_page(run.folder, render_page(run))


def write_page(folder: Path, page: str) -> Path:
    """Write the page of a folder, replacing an earlier one, and return its path."""
    path, work = folder / "report.html", folder / "report.html.part"
    work.write_text(page, encoding="utf-8")
    work.replace(path)
    return path


def render_page(run: RunSeries) -> str:
    """Return the report's HTML."""
    name = run.folder.resolve().name
    title = f"{run.level} · {name}" if run.level else name
    parts = [
        _render_head(run, name),
        _render_curves(run),
        _render_replay(run),
        _render_evaluations(run.folder),
        _render_videos(run.folder),
        _render_commands(run),
        _render_settings(run),
        _render_checkpoints(run.folder),
        _render_starts(run.folder),
        _render_files(run.folder),
    ]
    return make_page(title, parts)


def make_page(title: str, parts: Sequence[str]) -> str:
    """Return a page of these parts."""
    made = f"Made {time.strftime('%Y-%m-%d %H:%M')} by impala_mm {provenance.revision()}".strip()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{''.join(map(_read, _STYLES))}</style></head>"
        f"<body><main>{''.join(parts)}<footer><p>{escape(made)}</p></footer></main>"
        f"{_render_scripts()}</body></html>\n"
    )


def _render_head(run: RunSeries, name: str) -> str:
    """Render the result as sentences and as figures."""
    final, games = run.last("episode_return"), min(run.last("games") or 100, 100)
    frames, seconds = run.last("frames") or 0.0, run.last("seconds") or 0.0
    tiles = [
        ("-" if final is None else f"{final:.2f}", f"mean return of the last {games:g} games"),
        (format_number(frames), "environment frames"),
        (format_duration(seconds), "training time"),
        (_format_count(frames / seconds) if seconds else "-", "environment frames/s"),
        (_format_count(run.last("updates")), "updates"),
    ]
    best = summary.best_return(run)[0]
    if math.isfinite(best):
        tiles.insert(1, (f"{best:.2f}", "best mean return"))
    verdict = " ".join(summary.summarise(run))
    what = ", ".join(str(run.settings[k]) for k in ("algorithm", "agent_name") if k in run.settings)
    bottleneck = summary.describe_late_bottleneck(run)
    written = time.strftime(
        "%Y-%m-%d %H:%M", time.localtime((run.folder / "metrics.jsonl").stat().st_mtime)
    )
    facts = [what, name, f"last row {written}"]
    return (
        f"<header><h1>{escape(run.level or name)}</h1>"
        f'<p class="soft">{escape(" · ".join(filter(None, facts)))}</p>'
        f'<p class="verdict">{escape(verdict)}</p></header><div class="tiles">'
        + "".join(
            f'<div class="card tile{" first" * (i == 0)}"><b>{escape(value)}</b>'
            f"<span>{escape(label)}</span></div>"
            for i, (value, label) in enumerate(tiles)
        )
        + "</div>"
        + (f"<p>Over the second half of the run: {escape(bottleneck)}.</p>" if bottleneck else "")
    )


def _render_curves(run: RunSeries) -> str:
    """Render the return over frames and over time, and the other curves over either.

    The reader chooses between frames and time for the other curves.
    """
    axes = {"frames": "frames", "time": "seconds"}

    def card(panel: Panel, ways: Sequence[str]) -> str:
        pictures = []
        for way in ways:
            if curve := make_curve(run, axes[way], panel.key):
                picture = render_chart(curve, panel, way == "time")
                pictures.append(f'<div class="by-{way}">{picture}</div>')
        return "".join(pictures)

    returns = "".join(card(PANELS[0], [way]) for way in axes)
    drawn = [*PANELS[1:], *summary.replay_panels(run)]
    others = "".join(card(panel, list(axes)) for panel in drawn)
    notes = []
    if run.resumed_at:
        at = ", ".join(format_number(frames) for frames in run.resumed_at)
        notes.append(f"The run was resumed at {at} frames.")
    if run.superseded_rows:
        rows = f"{run.superseded_rows} {'row was' if run.superseded_rows == 1 else 'rows were'}"
        notes.append(f"{rows} replaced after that; the newer values are drawn.")
    note = f'<p class="soft">{" ".join(notes)}</p>' if notes else ""
    large = f'<section><h2>Curves</h2>{note}<div class="charts large">{returns}</div>'
    if not others:
        return f"{large}</section>" if returns else ""
    return (
        f"{large}"
        '<input class="against" type="radio" name="against" id="frames" checked>'
        '<input class="against" type="radio" name="against" id="time">'
        '<div class="switch"><label for="frames">over frames</label>'
        f'<label for="time">over time</label></div><div class="charts">{others}</div></section>'
    )


def render_chart(curve: Curve, panel: Panel, is_time: bool) -> str:
    """Return a curve over frames, or over seconds of training, as HTML.

    Where no script runs, a sentence about the curve remains.
    """
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
        f"<p>{escape(text)}</p></div>"
    )


def _numbers(values: Iterable[Any]) -> list[float | None]:
    """Return numbers with the digits that a chart can show; None for one that is not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def _render_scripts() -> str:
    """Render the scripts that draw the charts."""
    uplot = _STATIC / "uplot"
    plain = _read(uplot / "uPlot.iife.min.js").partition("\n")[2]  # the first line has its address
    module = f"{_read(_STATIC / 'charts.js')}\n{_read(_HERE / 'report.js')}"
    return (
        f"<script>/* uPlot\n{_read(uplot / 'LICENSE')}*/\n{plain}</script>"
        f'<script type="module">{module}</script>'
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _render_replay(run: RunSeries) -> str:
    """Render a table of the statistics of replay, where the run has one."""
    names = ["statistic", "mean of the second half", "last", "unit", "meaning"]
    rows = summary.list_replay(run)
    return render_section("Replay", render_table(names, rows, numbers={1, 2}, words={4}))


def _render_evaluations(folder: Path) -> str:
    """Render a table of the complete games that were played with the run's checkpoints."""
    rows = []
    for record in run_contents.read_records(folder / "evaluations.jsonl"):
        returns = run_contents.game_values(record)
        lengths = run_contents.game_values(record, "lengths")
        rows.append(
            [
                _format_time(record.get("time")),
                record.get("level", ""),
                Path(str(record.get("checkpoint", ""))).name,
                _format_count(record.get("frames")),
                "most probable" if record.get("deterministic") else "sampled",
                str(len(returns)),
                f"{sum(returns) / len(returns):.2f}" if returns else "-",
                f"{min(returns):g} to {max(returns):g}" if returns else "-",
                format_number(sum(lengths) / len(lengths)) if lengths else "-",
            ]
        )
    names = ["time", "level", "checkpoint", "frames", "actions", "games", "mean return", "range"]
    return render_section(
        "Evaluations", render_table([*names, "mean length"], rows, numbers={3, 5, 6, 7, 8})
    )


def _render_videos(folder: Path) -> str:
    """Render the videos: small ones are embedded, large ones are linked."""
    figures, room = [], _MAX_VIDEOS_MB * 2**20
    for path in run_contents.list_videos(folder):
        source = urllib.parse.quote(os.path.relpath(path, folder.resolve()))
        if path.stat().st_size <= min(_MAX_VIDEO_MB * 2**20, room):
            room -= path.stat().st_size
            source = "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()
        figures.append(
            f'<figure class="card"><video controls preload="metadata" src="{source}"></video>'
            f"<figcaption>{escape(path.stem)}</figcaption></figure>"
        )
    return render_section(
        "Videos", f'<div class="videos">{"".join(figures)}</div>' if figures else ""
    )


def _render_commands(run: RunSeries) -> str:
    return render_section(
        "Next",
        "".join(
            f'<p class="soft">{escape(what)}</p><pre>{escape(command)}</pre>'
            for what, command in summary.next_commands(run)
        ),
    )


def _render_settings(run: RunSeries) -> str:
    """Render the changed flags, and the others in a section that can be opened."""
    rows = summary.list_settings(run)
    changed = [[f"--{name}", value, default] for name, value, default, is_new in rows if is_new]
    same = [[f"--{name}", value] for name, value, _, is_new in rows if not is_new]
    if not rows:
        return ""
    first = render_table(["flag", "value", "default"], changed, kind="changed", words={1, 2})
    rest = render_table(["flag", "default"], same, words={1})
    count = f"<details><summary>{len(same)} flags with their default</summary>{rest}</details>"
    return render_section("Settings", (first or "<p>All flags have their default.</p>") + count)


def _render_checkpoints(folder: Path) -> str:
    rows = []
    for about in run_contents.read_checkpoints(folder):
        marks = [word for word in ("best", "milestone") if about.get(word)]
        value = about.get("episode_return")
        rows.append(
            [
                about["path"],
                _format_count(about.get("updates")),
                _format_count(about.get("frames")),
                f"{value:.2f}" if is_number(value) else "-",
                format_duration(about["seconds"]) if is_number(about.get("seconds")) else "-",
                _format_count(about.get("learners")),
                ", ".join(marks),
            ]
        )
    names = ["checkpoint", "updates", "frames", "mean return", "training time", "learners"]
    table = render_table([*names, "kept as"], rows, numbers={1, 2, 3, 4, 5})
    return render_section("Checkpoints", table)


def _render_starts(folder: Path) -> str:
    """Render a table of the run's starts: time, host, machine, revision and command."""
    starts = run_contents.read_records(folder / "starts.jsonl")
    rows = [
        [
            _format_time(start.get("time")),
            str(start.get("host", "")),
            str(start.get("machine", "")),
            str(len(start.get("learners", []))),
            str(start.get("revision", "")),
            str(start.get("command", "")),
        ]
        for start in starts
    ]
    names = ["time", "host", "machine", "learners", "revision", "command"]
    saved = run_contents.read_checkpoints(folder)
    versions = (starts or saved or [{}])[-1].get("versions", {})
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    packages = f'<p class="soft">{escape(told)}</p>' if told else ""
    return render_section("Starts", render_table(names, rows, numbers={3}, words={2, 5}) + packages)


def _render_files(folder: Path) -> str:
    """Render a table of the folder's files; a subfolder has one row with its total size."""
    rows = []
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_file(), p.name)):
        if path.name.startswith("report.html"):
            continue
        inside = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        size = sum(p.stat().st_size for p in inside if p.exists())
        name = f"{path.name}/ ({len(inside)} files)" if path.is_dir() else path.name
        rows.append(
            [name, f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 1024:,.1f} KiB"]
        )
    return render_section("Files", render_table(["name", "size"], rows, numbers={1}))


# -- elements of the page


def render_section(title: str, content: str) -> str:
    """Render a section; return an empty string if it has no content."""
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def render_table(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    kind: str = "",
    numbers: Iterable[int] = (),
    words: Iterable[int] = (),
) -> str:
    """Render a table; return an empty string if it has no rows.

    `numbers` are the columns aligned right; `words` are the columns whose lines may break anywhere.
    """
    if not rows:
        return ""
    kinds = dict.fromkeys(numbers, ' class="number"') | dict.fromkeys(words, ' class="word"')
    head = "".join(f"<th{kinds.get(i, '')}>{escape(name)}</th>" for i, name in enumerate(names))
    body = "".join(
        f'<tr class="{kind}">'
        + "".join(f"<td{kinds.get(i, '')}>{escape(cell)}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="card table"><table><tr>{head}</tr>{body}</table></div>'


def escape(text: Any) -> str:
    """Return a text as HTML shows it."""
    return html.escape(str(text))


def _format_count(value: Any) -> str:
    return f"{value:,.0f}" if is_number(value) else "-"


def _format_time(value: Any) -> str:
    return str(value or "")[:16].replace("T", " ")
