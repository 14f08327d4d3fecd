"""Ways to train, compared over several seeds: interquartile means and their uncertainty.

Of one task with few seeds the mean depends on a single lucky run, and the median ignores most of
them; the interquartile mean averages the middle half. Means and bands follow "Deep Reinforcement
Learning at the Edge of the Statistical Precipice" (Agarwal et al., 2021) and its library rliable,
which needs packages of other years; SciPy computes them here.
"""

import datetime
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from impala_mm.config import flags
from impala_mm.records.run_contents import read_records
from sandbox import plot_style
from sandbox.results import atari_5
from sandbox.results.documented import REFERENCE_FOLDER, describe_machine
from sandbox.results.runs import RunGroup, RunSeries, group_runs, read_all

_POINTS = 60  # of a curve
# Returns are means of so many games at least: the first ones to end are the short ones.
_LEAST_GAMES = 30
_AXES = {"frames": "environment frames", "seconds": "training time (s)"}


class Band(NamedTuple):
    """The ends of a confidence interval, each [...]."""

    low: np.ndarray
    high: np.ndarray


def interquartile_mean(*tasks: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the mean of the middle half of the scores of all tasks, each [runs, ...].

    A quarter of the scores, rounded down, is left out at either end.
    """
    return stats.trim_mean(np.concatenate(tasks, axis=axis), 0.25, axis=axis)


def bootstrap_band(*tasks: np.ndarray, samples: int = 2000) -> Band:
    """Return the 95% confidence interval of the interquartile mean of scores, each [runs, ...].

    It lies between percentiles of the means of runs that are drawn with replacement, those of each
    task from its own. One run has no interval.
    """
    if min(map(len, tasks)) < 2:
        return Band(*[interquartile_mean(*tasks)] * 2)
    found = stats.bootstrap(
        tasks,
        interquartile_mean,
        n_resamples=samples,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return Band(*found.confidence_interval)


def compare(folders: Sequence[Path], pattern: str, out: Path) -> None:
    """Compare runs: print a table, and write OUT.json, OUT.svg and OUT.png."""
    found = summarise(read_all(folders), pattern)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(f"{out.name}.json").write_text(json.dumps(found) + "\n")
    draw(found, *(out.with_name(out.name + ending) for ending in (".svg", ".png")))
    print(table(found))


def summarise(runs: Sequence[RunSeries], pattern: str = "") -> dict[str, Any]:
    """Return the curves of runs, by level and kind; a kind's runs differ in the seed alone."""
    levels: dict[str, dict[str, Any]] = {}
    for level in dict.fromkeys(run.level for run in runs):
        here = [run for run in runs if run.level == level]
        if not all(_has_return(run).any() for run in here):
            flags.refuse(f"{level}: a run has no mean return yet")
        last = min(run.columns["frames"][_has_return(run)][-1] for run in here)
        levels[level] = {g.label: _summarise_kind(g, last) for g in group_runs(here, pattern)}
    starts = [start for run in runs for start in read_records(run.folder / "starts.jsonl")[-1:]]
    return {
        "commits": sorted({str(start.get("revision", "")) for start in starts}),
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "levels": levels,
    }


def _summarise_kind(group: RunGroup, last: float) -> dict[str, Any]:
    """Return a kind's command and its runs' returns at the same frames and the same seconds.

    They begin where each run has one.
    """
    known = [_has_return(run) for run in group.runs]
    longest = np.median([run.columns["seconds"][_has_return(run)][-1] for run in group.runs])
    found: dict[str, Any] = {
        "seeds": [run.settings.get("seed") for run in group.runs],
        "command": _command(group.runs[0]),
    }
    for x, end in (("frames", float(last)), ("seconds", float(longest))):
        at = [run.columns[x][rows] for run, rows in zip(group.runs, known, strict=True)]
        begin = max(end / _POINTS, *(each[0] for each in at), 0)
        grid = np.linspace(min(begin, end), end, _POINTS)
        returns = [
            np.interp(grid, places, run.columns["episode_return"][rows]).round(3).tolist()
            for run, rows, places in zip(group.runs, known, at, strict=True)
        ]
        found[x] = {"at": grid.round(2).tolist(), "returns": returns}
    return found


def _has_return(run: RunSeries) -> np.ndarray:
    """Return for each row of a run whether it has a mean return of enough games."""
    known = np.isfinite(run.columns.get("episode_return", np.full(0, np.nan)))
    games = run.columns.get("games", np.full(known.size, np.inf))
    return known & (games >= min(_LEAST_GAMES, games[known].max(initial=0.0)))


def _command(run: RunSeries) -> str:
    """Return the command that started a run, without its folder, and with {seed} for its seed."""
    starts = read_records(run.folder / "starts.jsonl") or [{}]
    words = shlex.split(str(starts[-1].get("command", "")))
    seed = run.settings.get("seed")
    words = [word for word in words if not word.startswith(("--logdir=", "--seed="))]
    return shlex.join(words) + (" --seed={seed}" if seed is not None else "")


def repeat(name: str, seeds: Sequence[int]) -> Iterator[str]:
    """Yield the commands of a recorded comparison; each run has a folder below runs/NAME.

    Runs that others need come first.
    """
    found = read(name)
    for folder, command in found.get("before", {}).items():
        yield f"{command} --logdir=runs/{name}-teachers/{folder}"
    for seed in seeds:
        for level, kinds in found["levels"].items():
            for kind, about in kinds.items():
                command = about["command"].replace("{seed}", str(seed))
                yield f"{command} --logdir=runs/{name}/{level}/{kind}-{seed}"


def read(name: str) -> dict[str, Any]:
    """Read a recorded comparison."""
    return json.loads((REFERENCE_FOLDER / f"{name}.json").read_text())


def recorded_names() -> list[str]:
    """Return the names of the recorded comparisons."""
    paths = sorted(REFERENCE_FOLDER.glob("*.json"))
    return [path.stem for path in paths if not path.stem.rpartition("-")[2].isdigit()]


def draw(found: dict[str, Any], *paths: Path) -> None:
    """Draw each level's returns over frames, over seconds and at the end."""
    levels = found["levels"]
    figure, axes = plot_style.pyplot().subplots(
        *(len(levels), 3), figsize=(12, 3.2 * len(levels)), squeeze=False, layout="constrained"
    )
    for row, (level, kinds) in zip(axes, levels.items(), strict=True):
        for place, about in enumerate(kinds.values()):
            colour = plot_style.COLOURS[place % len(plot_style.COLOURS)]
            for axis, x in zip(row, _AXES, strict=False):
                scores, at = np.array(about[x]["returns"]), about[x]["at"]
                axis.plot(at, interquartile_mean(scores), color=colour)
                axis.fill_between(at, *bootstrap_band(scores), color=colour, alpha=0.15, lw=0)
            ends = np.array(about["frames"]["returns"])[:, -1]
            low, high = bootstrap_band(ends)
            row[2].plot([low, high], [place, place], color=colour, linewidth=3, alpha=0.4)
            row[2].plot(interquartile_mean(ends), place, "o", color=colour)
        counts = sorted({len(about["seeds"]) for about in kinds.values()})
        seeds = f"{' to '.join(map(str, counts))} seed{'' if counts == [1] else 's'}"
        row[0].set(title=f"{level}, {seeds}", ylabel="return, interquartile mean")
        for axis, title in zip(row, [*_AXES.values(), "return at the end"], strict=True):
            axis.set_xlabel(title)
            plot_style.label_axis(axis.xaxis)
        row[2].set_yticks(range(len(kinds)), kinds)
        row[2].invert_yaxis()
    plot_style.save_figure(figure, *paths)


COLUMNS = ("level", "kind", "seeds", "return at the end", "mean over the frames", "seconds")


def table(found: dict[str, Any]) -> str:
    """Return the final return and the mean return over all frames, of each kind, as Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows(found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows(found: dict[str, Any]) -> list[list[str]]:
    """Return the cells of `table`; kinds that have all levels have a row for all of them."""
    cells = []
    for level, kinds in found["levels"].items():
        for kind, about in kinds.items():
            returns = np.array(about["frames"]["returns"])  # [seeds, points]
            means = [_with_band(returns[:, -1]), _with_band(returns.mean(axis=1))]
            seconds = f"{about['seconds']['at'][-1]:.0f}"
            cells.append([level, kind, str(len(returns)), *means, seconds])
    several = _rows_of_all_levels(found["levels"]) if len(found["levels"]) > 1 else []
    return cells + several + _rows_of_atari_5(found["levels"])


def _rows_of_atari_5(levels: dict[str, Any]) -> list[list[str]]:
    """Return the median of 57 games that the last returns of five let expect, of each kind."""
    named = {atari_5.name_of(level): kinds for level, kinds in levels.items()}
    games = [named.get(game, {}) for game in atari_5.WEIGHTS]
    cells = []
    for kind in games[0]:
        if all(kind in kinds for kinds in games):
            ends = [np.array(kinds[kind]["frames"]["returns"])[:, -1] for kinds in games]
            medians = [
                atari_5.estimate_median(dict(zip(atari_5.WEIGHTS, of_seed, strict=True)))
                for of_seed in zip(*ends, strict=False)
            ]
            band = _with_band(np.array(medians))
            cells.append(["Atari-57 median, estimated", kind, str(len(medians)), band, "", ""])
    return cells


def _rows_of_all_levels(levels: dict[str, Any]) -> list[list[str]]:
    """Return rows of returns between 0, the lowest one of each level, and 1, its highest one."""
    cells = []
    returns = {
        level: {kind: np.array(about["frames"]["returns"]) for kind, about in kinds.items()}
        for level, kinds in levels.items()
    }
    in_all = set.intersection(*(set(kinds) for kinds in levels.values()))
    for kind in dict.fromkeys(kind for kinds in levels.values() for kind in kinds):
        if kind not in in_all:
            continue
        scores = []  # of each level: [seeds, points]
        for kinds in returns.values():
            ends = np.concatenate([each[:, -1] for each in kinds.values()])
            range_of = max(ends.max() - ends.min(), 1e-9)
            scores.append((kinds[kind] - ends.min()) / range_of)
        means = [
            _with_band(*(each[:, -1] for each in scores)),
            _with_band(*(each.mean(axis=1) for each in scores)),
        ]
        cells.append(["all, 0 to 1", kind, str(sum(map(len, scores))), *means, ""])
    return cells


def _with_band(*tasks: np.ndarray) -> str:
    """Return the interquartile mean of scores, each [seeds], and its confidence interval.

    One seed has no interval.
    """
    mean, (low, high) = interquartile_mean(*tasks), bootstrap_band(*tasks)
    return f"{mean:.3f}" + f" ({low:.3f} to {high:.3f})" * bool(min(map(len, tasks)) > 1)
