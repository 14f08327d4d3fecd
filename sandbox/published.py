"""Recorded curves of several seeds beside the results that others publish: a table and a picture.

`record.py` writes both. A result is the mean return of the last 100 games of training, as in
CleanRL's tables. The table has the longest runs, if they were complete; the picture has all.
"""

import shlex
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import plot_style
import verify
from documented_runs import DOCUMENTED_RUNS, settings, settings_of
from run_series import Curve, combine_curves

Recorded = dict[str, list[dict]]  # by name: the content of each seed's file in reference/
_COLUMNS = 3


def table(recorded: Recorded) -> list[str]:
    """Return the lines of the table, with a row for each task."""
    lines = [
        "| algorithm, task | steps | published | here, each seed | mean | most likely actions "
        "| the published mean was reached after |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, begun in recorded.items():
        planned = max(map(_planned_frames, begun), default=0.0)
        if not (runs := [run for run in begun if run["frames"] >= planned]):
            continue
        returns = [run["episode_return"] for run in runs]
        tested = [run["deterministic_return"] for run in runs if "deterministic_return" in run]
        lines.append(
            f"| {_task(name)} | {_steps(name, runs[0])} | {_published_result(name)} "
            f"| {', '.join(map(_shorten, returns))} | {_mean(returns)} | {_mean(tested)} "
            f"| {_reached(name, runs)} |"
        )
    return lines


def draw(recorded: Recorded, path: Path) -> None:
    """Draw the curves of all seeds, their mean and range, and the published result, by task."""
    rows = -(-len(recorded) // _COLUMNS)
    figure, panels = plot_style.pyplot().subplots(
        rows, _COLUMNS, figsize=(10, 2.6 * rows), layout="constrained", squeeze=False
    )
    for panel in panels.flat[len(recorded) :]:
        panel.remove()
    for panel, (name, runs) in zip(panels.flat, recorded.items(), strict=False):
        published, deviation = _published(name)
        panel.axhspan(published - deviation, published + deviation, color="#333333", alpha=0.12)
        panel.axhline(published, color="#333333", linestyle="--", linewidth=1, label="published")
        curves = list(_curves(runs))
        for curve in curves:
            panel.plot(curve.x, curve.mean, color=plot_style.COLOURS[4], linewidth=0.8)
        if combined := combine_curves(curves):
            colour = plot_style.COLOURS[0]
            panel.fill_between(combined.x, combined.low, combined.high, color=colour, alpha=0.18)
            panel.plot(combined.x, combined.mean, color=colour, label=f"{len(runs)} seeds")
        panel.set_title(_task(name))
        plot_style.label_axis(panel.xaxis)
        plot_style.label_axis(panel.yaxis)
    panels[0, 0].legend()
    figure.supxlabel("environment frames", fontsize=9)
    figure.supylabel("mean return of the last 100 games", fontsize=9)
    plot_style.save_figure(figure, path)


def _curves(runs: list[dict]) -> Iterator[Curve]:
    for run in runs:
        frames, _, returns = np.array(run["curve"]).T
        yield Curve(frames, returns, returns, returns)


def _task(name: str) -> str:
    return f"{settings(name).algorithm.upper()}, {_level(name)}"


def _level(name: str) -> str:
    return settings(name).level_name


def _steps(name: str, run: dict) -> str:
    """Return the steps of a complete run."""
    return plot_style.format_number(_planned_frames(run) / _repeats(name))


def _planned_frames(run: dict) -> float:
    """Return the frames that a run's own command plans; the documented one may have changed."""
    return settings_of(shlex.split(run["command"])[1:]).total_environment_frames


def _repeats(name: str) -> int:
    """Return the frames of a step."""
    return 4 if "NoFrameskip" in _level(name) else 1


def _reached(name: str, runs: list[dict]) -> str:
    """Return after how many steps and seconds each seed reached the published mean."""
    found = [verify.first_reaching(run["curve"], _published(name)[0]) for run in runs]
    return ", ".join(
        f"{plot_style.format_number(round(at[0] / _repeats(name), -3))} steps ({at[1]:,.0f} s)"
        if at
        else "never"
        for at in found
    )


def _published(name: str) -> tuple[float, float]:
    published = DOCUMENTED_RUNS[name].published
    assert published is not None
    return published


def _published_result(name: str) -> str:
    """Return the published result, and its number of steps if that is another than the run's."""
    steps = DOCUMENTED_RUNS[name].published_steps
    return _with_deviation(*_published(name)) + (f" after {steps}" if steps else "")


def _mean(values: list[float]) -> str:
    """Return the values' mean, with their deviation if there are several."""
    if len(values) < 2:
        return _shorten(values[0]) if values else ""
    return _with_deviation(statistics.mean(values), statistics.stdev(values))


def _with_deviation(mean: float, deviation: float) -> str:
    return f"{_shorten(mean)} ± {_shorten(deviation)}"


def _shorten(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.1f}"
