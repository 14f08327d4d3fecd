"""Draw the learning curves of runs over frames and over time, or write a report of one run.

    python sandbox/plot.py runs/FOLDER                 FOLDER/curves.png and .svg
    python sandbox/plot.py runs/a-* runs/b-*           ./curves.png and .svg
    python sandbox/plot.py runs/* --out=pictures/all --only=return,speed
    python sandbox/plot.py --report runs/FOLDER        FOLDER/report.html

Runs whose settings differ only in the seed form one group: a line for their mean and a band from
the lowest to the highest value. Other settings form other groups, and the legend names the
settings in which they differ. A return is the mean over the last 100 complete games; frames are
environment frames; seconds are training time, with the wait for the first unroll (which
--max_seconds does not count), and continue when a run is resumed.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plot_style
import report
import run_series
from run_series import Curve, RunGroup, RunSeries, UnreadableRun

from impala_mm.config import command_line, flags
from impala_mm.records.run_contents import PANELS, Panel

# Inches: the figure's width, the height of a return's row, the height of another row.
_WIDTH, _TALL, _LOW = 10.0, 3.0, 1.5


def draw_runs(groups: list[RunGroup], panels: Sequence[Panel], title: str) -> Any:
    """Draw a row of panels per quantity: over frames on the left, over time on the right.

    Each level has its own row for the return. Raises UnreadableRun if no run has any of the
    quantities.
    """
    rows = [(panel, here) for panel in panels for here in _groups_by_row(panel, groups)]
    if not rows:
        raise UnreadableRun(f"none of the runs has {' or '.join(p.key for p in panels)} yet")
    heights = [_TALL if panel.name == "return" else _LOW for panel, _ in rows]
    figure, axes = plot_style.pyplot().subplots(
        len(rows),
        2,
        figsize=(_WIDTH, sum(heights) + 0.7),
        height_ratios=heights,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    colours = [plot_style.COLOURS[i % len(plot_style.COLOURS)] for i in range(len(groups))]
    several = len({group.runs[0].level for group in groups}) > 1
    for (panel, here), pair in zip(rows, axes, strict=True):
        level = f", {here[0].runs[0].level}" if several and panel.name == "return" else ""
        pair[0].set_title(panel.title + level)
        pair[0].set_ylabel(panel.unit)
        for axis, x in zip(pair, ("frames", "seconds"), strict=True):
            last = panel.name == "return" or (panel, here) == rows[-1]
            _draw_panel(axis, [(g, colours[groups.index(g)]) for g in here], x, panel, last)
    figure.align_ylabels()
    if len(groups) > 1:
        _add_legend(figure, [group.label for group in groups], colours, title)
    else:
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
    return figure


def _add_legend(figure: Any, labels: list[str], colours: list[str], title: str) -> None:
    """Add a legend between the title and the panels, in as many columns as fit."""
    figure.legend(
        [plot_style.pyplot().Line2D([], [], color=colour, linewidth=3) for colour in colours],
        labels,
        loc="outside upper left",
        ncols=max(1, min(len(labels), 110 // (max(map(len, labels)) + 7))),
        title=title,
        title_fontproperties={"weight": "bold", "size": 12},
        alignment="left",
    )


def _groups_by_row(panel: Panel, groups: list[RunGroup]) -> list[list[RunGroup]]:
    """Return the groups of each row; each level has a row of its own for the return."""
    known = [group for group in groups if any(r.last(panel.key) is not None for r in group.runs)]
    if panel.name != "return":
        return [known] if known else []
    levels = dict.fromkeys(group.runs[0].level for group in known)
    return [[group for group in known if group.runs[0].level == level] for level in levels]


def _draw_panel(
    axis: Any, groups: list[tuple[RunGroup, str]], x: str, panel: Panel, named: bool
) -> None:
    """Draw one quantity over frames or seconds, each group in its colour."""
    unit, name = 1.0, "environment frames"
    if x == "seconds":
        longest = max(run.last("seconds") or 0.0 for group, _ in groups for run in group.runs)
        unit, short = plot_style.time_unit(longest)
        name = f"training time with the start ({short})"
    ends = []
    for group, colour in groups:
        curves = [c for run in group.runs if (c := run_series.make_curve(run, x, panel.key))]
        _draw_group(axis, [c._replace(x=c.x / unit) for c in curves], colour)
        at = max(float(c.x[-1]) for c in curves) / unit
        ends.append((at, float(np.mean([c.mean[-1] for c in curves])), colour))
    plot_style.label_axis(axis.xaxis)
    plot_style.label_axis(axis.yaxis)
    axis.locator_params(axis="y", nbins=6 if panel.name == "return" else 4)
    axis.locator_params(axis="x", nbins=7)
    axis.margins(x=0.02, y=0.08)
    if panel.share:
        axis.set_ylim(-0.04, 1.04)
    if named:
        axis.set_xlabel(name)
    if panel.name == "return":
        _label_ends(axis, ends)


def _draw_group(axis: Any, curves: list[Curve], colour: str) -> None:
    """Draw each run of a group, and the mean and range if there are several."""
    width, alpha = (1.4, 1.0) if len(curves) == 1 else (0.7, 0.45)
    for each in curves:
        dot = {"marker": "o", "markersize": 4} if each.x.size == 1 else {}
        axis.plot(each.x, each.mean, color=colour, linewidth=width, alpha=alpha, **dot)
    combined = curves[0] if len(curves) == 1 else run_series.combine_curves(curves)
    if combined and (combined.high > combined.low).any():
        axis.fill_between(
            combined.x, combined.low, combined.high, color=colour, alpha=0.18, linewidth=0
        )
        if len(curves) > 1:
            axis.plot(combined.x, combined.mean, color=colour, linewidth=1.8)


def _label_ends(axis: Any, ends: list[tuple[float, float, str]]) -> None:
    """Write the last value beside the end of each line, without overlaps."""
    low, high = axis.get_ylim()
    apart, floor = (high - low) * 0.075, -np.inf
    for at, value, colour in sorted(ends, key=lambda end: end[1]):
        floor = max(value, floor + apart)
        axis.annotate(
            f"{value:.4g}" if abs(value) < 1e4 else plot_style.format_number(value),
            (at, floor),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            weight="bold",
            va="center",
            annotation_clip=False,
        )


def _make_title(groups: list[RunGroup]) -> str:
    runs = [run for group in groups for run in group.runs]
    levels = ", ".join(dict.fromkeys(run.level for run in runs if run.level))
    if len(runs) == 1:
        name = runs[0].folder.resolve().name
        return f"{levels}  ({name})" if levels and levels != name else name
    if len(groups) == 1:
        return f"{groups[0].label}: mean and range"
    return levels or f"{len(runs)} runs"


def _read_runs(folders: Sequence[Path]) -> list[RunSeries]:
    """Read the runs that can be drawn.

    Prints why a run is left out; exits if it is the only one or if none is left.
    """
    runs = []
    for folder in folders:
        try:
            runs.append(run_series.read_run(folder))
        except UnreadableRun as error:
            if len(folders) == 1:
                flags.refuse(str(error))
            print(f"left out: {error}", file=sys.stderr)
            continue
        if superseded := runs[-1].superseded_rows:
            rows = "1 row was" if superseded == 1 else f"{superseded} rows were"
            print(f"{folder}: {rows} replaced after a resume; the newer values are drawn")
    if not runs:
        flags.refuse("none of these folders contains a run that can be drawn")
    return runs


def _choose_panels(names: str) -> list[Panel]:
    """Return the panels that --only names, in its order."""
    by_name = {panel.name: panel for panel in PANELS}
    chosen = [name.strip() for name in names.split(",")] if names else list(by_name)
    for name in chosen:
        if name not in by_name:
            flags.refuse(
                f"--only={names}: unknown panel {name!r}; choose from {', '.join(by_name)}"
            )
    return [by_name[name] for name in chosen]


def main() -> None:
    """Parse the command line and draw the curves or write the reports."""
    command_line.escape_unknown_characters()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logdir", nargs="+", type=Path, help="folder of a run")
    parser.add_argument(
        "--report", action="store_true", help="write LOGDIR/report.html instead of a figure"
    )
    parser.add_argument("--out", type=Path, help="path of the figures, without .png or .svg")
    parser.add_argument(
        "--only",
        default="",
        help=f"panels, separated by commas: {', '.join(panel.name for panel in PANELS)}",
    )
    parser.add_argument(
        "--group",
        default="",
        help="regular expression; runs whose names match with the same text are one group",
    )
    args = parser.parse_args()
    panels = _choose_panels(args.only)
    try:
        re.compile(args.group)
    except re.error as error:
        flags.refuse(f"--group={args.group} is not a regular expression: {error}")
    runs = _read_runs(args.logdir)
    try:
        if args.report:
            for run in runs:
                print(f"wrote {report.write_report(run)}")
            return
        groups = run_series.group_runs(runs, args.group)
        out = args.out or (runs[0].folder if len(runs) == 1 else Path()) / "curves"
        out = out.with_suffix("") if out.suffix in (".png", ".svg") else out
        figure = draw_runs(groups, panels, _make_title(groups))
        out.parent.mkdir(parents=True, exist_ok=True)
        paths = [out.with_name(out.name + ending) for ending in (".png", ".svg")]
        plot_style.save_figure(figure, *paths)
    except UnreadableRun as error:
        flags.refuse(str(error))
    except OSError as error:
        flags.refuse(f"{error.filename} cannot be written: {error.strerror}")
    print(f"wrote {paths[0]} and {paths[1].name}")
    for group in groups:
        print(f"  {group.label}: {', '.join(run.folder.name for run in group.runs)}")


if __name__ == "__main__":
    main()
