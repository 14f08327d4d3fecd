"""The learning curves of runs as a figure, over frames and over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from impala_mm.config import flags
from impala_mm.records.run_contents import PANELS, Panel
from sandbox import plot_style
from sandbox.results.runs import (
    Curve,
    RunGroup,
    UnreadableRun,
    combine_curves,
    group_runs,
    make_curve,
    read_all,
)

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
        _add_legend(figure, [group.legend for group in groups], colours, title)
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
        curves = [c for run in group.runs if (c := make_curve(run, x, panel.key))]
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
    combined = curves[0] if len(curves) == 1 else combine_curves(curves)
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
        return f"{groups[0].legend}: mean and range"
    return levels or f"{len(runs)} runs"


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


def write_curves(folders: Sequence[Path], out: Path | None, only: str, pattern: str) -> None:
    """Write the figure as .png and .svg, and print their paths and the groups of runs."""
    panels, runs = _choose_panels(only), read_all(folders)
    groups = group_runs(runs, pattern)
    out = out or (runs[0].folder if len(runs) == 1 else Path()) / "curves"
    out = out.with_suffix("") if out.suffix in (".png", ".svg") else out
    paths = [out.with_name(out.name + ending) for ending in (".png", ".svg")]
    try:
        figure = draw_runs(groups, panels, _make_title(groups))
    except UnreadableRun as error:
        flags.refuse(str(error))
    out.parent.mkdir(parents=True, exist_ok=True)
    plot_style.save_figure(figure, *paths)
    print(f"wrote {paths[0]} and {paths[1].name}")
    for group in groups:
        print(f"  {group.legend}: {', '.join(run.folder.name for run in group.runs)}")
