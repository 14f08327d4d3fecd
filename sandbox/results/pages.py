"""The tables and pictures of recorded curves in README.md and curves.md.

Curves of several seeds stand beside the results that others publish. A result is the mean return of
the last 100 games of training, as in CleanRL's tables. The tables have the longest runs, if they
were complete; the picture has all.
"""

import re
import shlex
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sandbox import plot_style
from sandbox.results import atari_5, verify
from sandbox.results.documented import (
    ATARI_5,
    DOCUMENTED_RUNS,
    REFERENCE_FOLDER,
    ROOT,
    read_references,
    settings,
    settings_of,
)
from sandbox.results.runs import Curve, combine_curves

CURVES_PAGE = REFERENCE_FOLDER.parent / "curves.md"
README = ROOT / "README.md"
_LINE = 78  # the longest line of a command, if its words allow
Recorded = dict[str, list[dict]]  # by name: the content of each seed's file in reference/
_COLUMNS = 3
# Not in the README's table, which is short: tasks that every program solves, and games that have
# a table of their own or a protocol of their own.
_ONLY_IN_CURVES = {
    *("ppo-invertedpendulum", "ppo-acrobot", "rainbow-pong", "rainbow-breakout", "dqn-breakout"),
    "td3-halfcheetah",
    *(f"{algorithm}-{game.lower()}" for algorithm in ("ppo", "impala") for game in ATARI_5),
}


def write_pages() -> None:
    """Draw a figure per name, over frames and over time, and write the tables of both pages."""
    table = ["| task | return (random) | frames | time |", "|---|---|---|---|"]
    commands = ["```sh"]
    beside_published = {}
    for name, documented in DOCUMENTED_RUNS.items():
        runs = read_references(name)
        if not runs:
            continue
        if documented.published:
            beside_published[name] = runs
            continue
        _draw_task(name, runs, documented.beside)
        run = sorted(runs, key=lambda run: run["frames"])[len(runs) // 2]
        table.append(
            f"| {name} | {run['episode_return']:.2f} ({documented.task.random:g}) "
            f"| {run['frames']:,.0f} "
            f"| {run['seconds']:,.0f} s{'' if run.get('alone', True) else '*'} |"
        )
        commands.append(f"# {name}")
        commands += _broken(shlex.split(run["command"]))
    _replace(CURVES_PAGE, "table", table)
    _replace(CURVES_PAGE, "commands", [*commands, "```"])
    _replace(CURVES_PAGE, "published", seeds_table(beside_published))
    _replace(CURVES_PAGE, "atari-5", atari_5_table(beside_published))
    _replace(README, "published", published_table(beside_published))
    if beside_published:
        draw_published(beside_published, REFERENCE_FOLDER / "published.svg")


def _draw_task(name: str, runs: list[dict], beside: str) -> None:
    """Draw the recorded runs of a task over frames and over time."""
    figure, axes = plot_style.pyplot().subplots(
        1, 2, figsize=(9, 3), sharey=True, layout="constrained"
    )
    unit, short = plot_style.time_unit(max(run["seconds"] for run in runs))
    for number, run in enumerate(read_references(beside) if beside else []):
        frames, _, returns = zip(*run["curve"], strict=True)
        label = "" if number else beside
        axes[0].plot(frames, returns, color="#999999", label=label, zorder=1)
    for run in runs:
        frames, seconds, returns = zip(*run["curve"], strict=True)
        axes[0].plot(frames, returns, label=f"seed {run['seed']}")
        axes[1].plot([second / unit for second in seconds], returns)
    axes[0].set(xlabel="environment frames", ylabel="mean return of the last 100 games")
    axes[1].set(xlabel=f"training time ({short})")
    for panel in axes:
        plot_style.label_axis(panel.xaxis)
    axes[0].legend()
    figure.suptitle(name, x=0.01, ha="left", weight="bold")
    plot_style.save_figure(figure, REFERENCE_FOLDER / f"{name}.svg")


def _broken(words: list[str]) -> list[str]:
    """Return the lines of a command, broken between its words."""
    lines = [" ".join(words[:2])]
    for word in map(shlex.quote, words[2:]):
        if len(lines[-1]) + len(word) + 3 <= _LINE:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {word}")
    return lines


def _replace(page: Path, name: str, lines: list[str]) -> None:
    """Put the lines between two comments of a page that have this name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.read_text().split(begin)
    after = rest.split(end)[1]
    page.write_text("\n".join([before + begin, *lines, end + after]))


def published_table(recorded: Recorded) -> list[str]:
    """Return the lines of the README's table, with a row for each of most tasks."""
    lines = ["| task, algorithm | published | here | reached after |", "|---|---|---|---|"]
    for name, runs in _complete(recorded):
        if name not in _ONLY_IN_CURVES:
            returns = [run["episode_return"] for run in runs]
            lines.append(
                f"| {_short_task(name)} | {_published_result(name)} | {_mean(returns)} "
                f"| {_when_reached(name, runs, seconds=True)} |"
            )
    return lines


def seeds_table(recorded: Recorded) -> list[str]:
    """Return the lines of the table of curves.md, with each seed's result."""
    lines = ["| task, algorithm | each seed | most likely | steps |", "|---|---|---|---|"]
    for name, runs in _complete(recorded):
        returns = [run["episode_return"] for run in runs]
        tested = [run["deterministic_return"] for run in runs if "deterministic_return" in run]
        lines.append(
            f"| {_short_task(name)} | {', '.join(map(_shorten, returns))} | {_mean(tested)} "
            f"| {_when_reached(name, runs, seconds=False)} |"
        )
    return lines


def atari_5_table(recorded: Recorded) -> list[str]:
    """Return the lines of the table of Atari-5, whose last row estimates the median of 57 games."""
    lines = ["| game | PPO, CleanRL | PPO | IMPALA, Cleanba | IMPALA |", "|---|---|---|---|---|"]
    means: list[dict[str, float]] = [{}, {}, {}, {}]  # by column and game
    complete = dict(_complete(recorded))
    for game in ATARI_5:
        cells = [game]
        for algorithm in ("ppo", "impala"):
            name, column = f"{algorithm}-{game.lower()}", len(cells) - 1
            returns = [run["episode_return"] for run in complete.get(name, [])]
            means[column][game] = _published(name)[0]
            if returns:
                means[column + 1][game] = statistics.mean(returns)
            cells += [_with_deviation(*_published(name)), _mean(returns)]
        lines.append(f"| {' | '.join(cells)} |")
    medians = [
        f"{atari_5.estimate_median(each):.2f}" if each.keys() == ATARI_5.keys() else ""
        for each in means
    ]
    return [*lines, f"| median of 57, estimated | {' | '.join(medians)} |"]


def _complete(recorded: Recorded) -> Iterator[tuple[str, list[dict]]]:
    """Yield the complete runs of each name that has any."""
    for name, begun in recorded.items():
        planned = max(map(_planned_frames, begun), default=0.0)
        if runs := [run for run in begun if run["frames"] >= planned]:
            yield name, runs


def draw_published(recorded: Recorded, path: Path) -> None:
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


def _short_task(name: str) -> str:
    """Return the task for narrow columns: without the version of its environment."""
    level = re.sub(r"(NoFrameskip)?-v\d+$", "", _level(name))
    return f"{level}, {settings(name).algorithm.upper()}"


def _level(name: str) -> str:
    return settings(name).level_name


def _steps(name: str, run: dict) -> str:
    """Return the steps of a complete run."""
    return plot_style.format_number(_planned_frames(run) / _repeats(name))


def _planned_frames(run: dict) -> float:
    """Return the frames that a run's own command plans; the documented one may have changed."""
    return settings_of(
        run["command"].removeprefix("python experiment.py ")
    ).total_environment_frames


def _repeats(name: str) -> int:
    """Return the frames of a step."""
    return 4 if "NoFrameskip" in _level(name) else 1


def _when_reached(name: str, runs: list[dict], *, seconds: bool) -> str:
    """Return when the first and the last seed reached the published mean, and how many did."""
    found = [verify.first_reaching(run["curve"], _published(name)[0]) for run in runs]
    reached = sorted(at[1] if seconds else at[0] / _repeats(name) for at in found if at)
    if not reached:
        return f"not in {_steps(name, runs[0])} steps"
    ends = [reached[0], reached[-1]]
    told = [f"{at:,.0f}" if seconds else plot_style.format_number(round(at, -3)) for at in ends]
    count = "" if len(reached) == len(found) else f" ({len(reached)} of {len(found)} seeds)"
    return " to ".join(dict.fromkeys(told)) + (" s" if seconds else "") + count


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
