"""Comparisons of ways to train, over several seeds.

`replay_kinds.py`, `teacher_methods.py` and `teacher_changes.py` say what is compared; this module
makes the runs, sums them up, and draws them. Runs are made one at a time at the lowest priority,
seed by seed. A comparison that was interrupted continues with the run that was not over. Lines are
interquartile means over seeds, bands their 95% confidence intervals (`interquartile.py`).
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plot_style
from documented_runs import REFERENCE_FOLDER, ROOT, describe_machine
from interquartile import bootstrap_band, interquartile_mean
from run_series import RunSeries, read_run

RECORD = "record.json"  # in the folder of a run that is over
_POINTS = 60  # of a curve
# Returns are means of so many games at least: the first ones to end are the short ones.
_LEAST_GAMES = 30
_AXES = {"frames": "environment frames", "seconds": "training time (s)"}


class Comparison(NamedTuple):
    """A comparison of ways to train, each of which is a command."""

    name: str  # of its files
    what: str  # that differs, such as "replay"
    kinds: Sequence[str]
    frames: dict[str, int]  # of each level
    # (level, kind, seed, folder of all runs) -> the arguments of a run, without its folder; it may
    # read the runs of kinds before it with the same seed.
    command: Callable[[str, str, int, Path], list[str]]
    # Runs that those of a level need, and which are made before them: folder -> arguments.
    before: Mapping[str, Mapping[str, Sequence[str]]] = {}
    is_short: bool = False  # runs last seconds, and rows of metrics are two seconds apart


def make_runs(of: Comparison, out: Path, seeds: int, levels: Sequence[str]) -> None:
    """Make the runs that are not over yet, one after another; exit if one fails."""
    runs = {name: each for level in levels for name, each in of.before.get(level, {}).items()}
    for seed in range(1, seeds + 1):
        for level in levels:
            for kind in of.kinds:
                runs[f"{level}-{kind}-{seed}"] = of.command(level, kind, seed, out)
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, arguments) in enumerate(runs.items(), 1):
        if not (out / name / RECORD).exists():
            print(f"{number}/{len(runs)} $ {shlex.join(arguments)}", flush=True)
            _make_run(out / name, arguments)


def _make_run(folder: Path, arguments: Sequence[str]) -> None:
    """Make a run and record its command in its folder; exit if it fails."""
    with Path(f"{folder}.log").open("a") as log:
        code = subprocess.run(
            [sys.executable, *arguments[1:], f"--logdir={folder}"],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.nice(19),
            check=False,
        ).returncode
    if code:
        sys.exit(f"error: it ended with code {code}; {log.name} says why")
    # The code that trained: this script may import another installation's.
    start = json.loads((folder / "starts.jsonl").read_text().splitlines()[-1])
    record = {"command": shlex.join(arguments), "commit": start["revision"]}
    (folder / RECORD).write_text(json.dumps(record) + "\n")


def summarise(of: Comparison, out: Path, among: Sequence[str]) -> dict[str, Any]:
    """Return the curves of the runs that are over, of the same seeds for each kind of a level."""
    levels: dict[str, Any] = {}
    records = []
    for level in among:
        over = [_seeds_over(out, f"{level}-{kind}") for kind in of.kinds]
        seeds = sorted(set.intersection(*over))
        if not seeds:
            sys.exit(f"error: {out} has no seed of {level} that is over for each kind: `run`")
        folders = {kind: [out / f"{level}-{kind}-{seed}" for seed in seeds] for kind in of.kinds}
        records += [json.loads((f / RECORD).read_text()) for each in folders.values() for f in each]
        curves = {
            kind: _curves([*map(read_run, each)], of.frames[level])
            for kind, each in folders.items()
        }
        levels[level] = {"seeds": seeds, "kinds": curves}
    return {
        "commands": [
            *(shlex.join(each) for level in among for each in of.before.get(level, {}).values()),
            *(each["command"] for each in records if "--seed=1" in shlex.split(each["command"])),
        ],
        "commits": sorted({record["commit"] for record in records}),
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "levels": levels,
    }


def with_other_levels(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return what `summarise` found, and what an earlier file has of other levels."""
    if not (others := {k: v for k, v in earlier["levels"].items() if k not in found["levels"]}):
        return found
    return found | {
        "commands": list(dict.fromkeys(earlier["commands"] + found["commands"])),
        "commits": sorted({*earlier["commits"], *found["commits"]}),
        "levels": others | found["levels"],
    }


def _seeds_over(out: Path, name: str) -> set[int]:
    """Return the seeds of the runs of this name that are over."""
    return {int(p.parent.name.rpartition("-")[2]) for p in out.glob(f"{name}-[0-9]*/{RECORD}")}


def _curves(runs: Sequence[RunSeries], last: float) -> dict[str, Any]:
    """Return the mean returns of runs at the same frames, and at the same seconds.

    They begin where each run has one.
    """
    longest = float(np.median([run.columns["seconds"][-1] for run in runs]))
    known = [_has_return(run) for run in runs]
    found = {}
    for x, end in (("frames", float(last)), ("seconds", longest)):
        at = [run.columns[x][rows] for run, rows in zip(runs, known, strict=True)]
        begin = max(end / _POINTS, *(each[0] for each in at))
        grid = np.linspace(min(begin, end), end, _POINTS)
        returns = [
            np.interp(grid, places, run.columns["episode_return"][rows]).round(3).tolist()
            for run, rows, places in zip(runs, known, at, strict=True)
        ]
        found[x] = {"at": grid.round(2).tolist(), "returns": returns}
    return found


def _has_return(run: RunSeries) -> np.ndarray:
    """Return for each row of a run whether it has a mean return of enough games."""
    known = np.isfinite(run.columns["episode_return"])
    games = run.columns["games"]
    return known & (games >= min(_LEAST_GAMES, games[known].max()))


def draw(found: dict[str, Any], *paths: Path) -> None:
    """Draw each level's returns over frames and over seconds."""
    levels = found["levels"]
    figure, axes = plot_style.pyplot().subplots(
        *(len(levels), 2), figsize=(10, 3.2 * len(levels)), squeeze=False, layout="constrained"
    )
    for row, (level, about) in zip(axes, levels.items(), strict=True):
        for axis, (x, title) in zip(row, _AXES.items(), strict=True):
            for colour, (kind, curves) in zip(
                plot_style.COLOURS, about["kinds"].items(), strict=False
            ):
                scores = np.array(curves[x]["returns"])[:, None]  # [seeds, 1, points]
                band = bootstrap_band(scores)
                at = curves[x]["at"]
                axis.plot(at, interquartile_mean(scores), color=colour, label=kind)
                axis.fill_between(at, *band, color=colour, alpha=0.15, linewidth=0)
            axis.set(title=f"{level}, {_count(len(about['seeds']))}", xlabel=title)
            plot_style.label_axis(axis.xaxis)
        row[0].set_ylabel("return, interquartile mean")
    axes[0][0].legend()
    plot_style.save_figure(figure, *paths)


def draw_ends(found: dict[str, Any], *paths: Path) -> None:
    """Draw each level's returns at the end: of runs that are over before they have a curve."""
    levels = found["levels"]
    figure, axes = plot_style.pyplot().subplots(
        *(1, len(levels)), figsize=(10, 2.6), squeeze=False, layout="constrained"
    )
    for axis, (level, about) in zip(axes[0], levels.items(), strict=True):
        for place, (kind, colour) in enumerate(
            zip(about["kinds"], plot_style.COLOURS, strict=False)
        ):
            ends = np.array(about["kinds"][kind]["frames"]["returns"])[:, None, -1]  # [seeds, 1]
            band = bootstrap_band(ends)
            axis.plot([band.low, band.high], [place, place], color=colour, linewidth=3, alpha=0.4)
            axis.plot(interquartile_mean(ends), place, "o", color=colour)
        axis.set(title=f"{level}, {_count(len(about['seeds']))}", xlabel="return at the end")
        axis.set_yticks(range(len(about["kinds"])), about["kinds"])
        axis.invert_yaxis()
    plot_style.save_figure(figure, *paths)


def _count(seeds: int) -> str:
    return f"{seeds} seed{'' if seeds == 1 else 's'}"


def table(found: dict[str, Any], what: str) -> str:
    """Return the final return and the mean return over all frames, of each kind, as Markdown."""
    lines = [f"| level | {what} | return at the end | mean over the frames | seconds |"]
    lines.append("|---|---|---|---|---|")
    for level, about in found["levels"].items():
        for kind, curves in about["kinds"].items():
            returns = np.array(curves["frames"]["returns"])  # [seeds, points]
            cells = [_with_band(returns[:, -1]), _with_band(returns.mean(axis=1))]
            seconds = f"{curves['seconds']['at'][-1]:.0f}"
            lines.append(f"| {' | '.join([level, kind, *cells, seconds])} |")
    return "\n".join(lines)


def _with_band(scores: np.ndarray) -> str:
    """Return the interquartile mean of scores [seeds] and its confidence interval.

    One seed has no interval.
    """
    if len(scores) == 1:
        return f"{scores[0]:.3f}"
    band = bootstrap_band(scores[:, None])
    return f"{interquartile_mean(scores[:, None]):.3f} ({band.low:.3f} to {band.high:.3f})"


def main(description: str, comparisons: Sequence[Comparison]) -> None:
    """Parse the command line, and make the runs of a comparison or summarise them."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    by_name = {each.name: each for each in comparisons}
    levels = list(dict.fromkeys(level for each in comparisons for level in each.frames))
    parser.add_argument("what", choices=("run", "summarise"))
    if len(comparisons) > 1:
        parser.add_argument("name", choices=by_name, help="what is compared")
    parser.add_argument("--out", type=Path, help="their folder; default: runs/NAME")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, from 1 on")
    parser.add_argument("--levels", nargs="+", choices=levels, help="the tasks; default: all")
    parser.add_argument(
        "--to", type=Path, default=REFERENCE_FOLDER, help="where summarise writes its files"
    )
    given = parser.parse_args()
    of = by_name[getattr(given, "name", comparisons[0].name)]
    out = (given.out or Path("runs") / of.name).absolute()
    chosen = given.levels or list(of.frames)
    if strange := set(chosen) - set(of.frames):
        parser.error(f"{of.name} has {', '.join(of.frames)}, and not {', '.join(sorted(strange))}")
    if given.what == "run":
        make_runs(of, out, given.seeds, chosen)
        return
    found, file = summarise(of, out, chosen), given.to / f"{of.name}.json"
    if given.levels and file.exists():
        found = with_other_levels(found, json.loads(file.read_text()))
    file.write_text(json.dumps(found) + "\n")
    (draw_ends if of.is_short else draw)(found, given.to / f"{of.name}.svg")
    print(table(found, of.what))
