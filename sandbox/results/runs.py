"""Runs as series of numbers: read from their folders, thinned, and combined over seeds.

A run that was killed resumes from its last checkpoint, so its next rows have fewer frames and
seconds than its last ones. The rows after the resume count; those that they replace are left out.
"""

import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_mm.config import flags
from impala_mm.records.run_contents import (
    default_settings,
    drop_replaced,
    find_current,
    is_number,
    other_settings,
    read_json_lines,
)
from impala_mm.records.run_folder import recorded_settings
from sandbox.plot_style import format_number

MAX_BINS = 300  # points of a long run's curve; more could not be told apart
_COMBINED_POINTS = 120  # points of the curve that combines several seeds
# The usual names of folders of several seeds: name-1-rest, name_seed3, name-s3.
_SEED_IN_NAME = re.compile(r"[-_ ](?:seed|s)?[-_]?\d{1,3}(?=$|[-_ ])")


class UnreadableRun(Exception):
    """Raised if there is nothing to draw; the message gives the reason."""


class RunSeries(NamedTuple):
    """The settings and the metrics in one run's folder."""

    folder: Path
    settings: dict[str, Any]  # empty if settings.json is missing
    columns: dict[str, np.ndarray]  # by key of metrics.jsonl: [rows], NaN where a row lacks it
    superseded_rows: int  # number of rows that were replaced after a resume
    resumed_at: list[float]  # frames at which the run was resumed, if its rows show it

    @property
    def level(self) -> str:
        """The run's level, or an empty string if it is unknown."""
        return str(self.settings.get("level_name", ""))

    def last(self, key: str) -> float | None:
        """Return the newest value of a column, or None if it has none."""
        known = self.columns.get(key, np.array([]))
        known = known[np.isfinite(known)]
        return float(known[-1]) if known.size else None


class Curve(NamedTuple):
    """A line and the band around it; all arrays have the shape [points]."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class RunGroup(NamedTuple):
    """Runs that differ only in their seed."""

    label: str
    runs: list[RunSeries]

    @property
    def legend(self) -> str:
        """The label with the number of runs, if there are several."""
        seeds = {run.settings.get("seed") for run in self.runs}
        many = "seeds" if len(seeds) == len(self.runs) else "runs"
        return f"{self.label} ({len(self.runs)} {many})" if len(self.runs) > 1 else self.label


def read_run(folder: Path) -> RunSeries:
    """Read a run's folder; raise UnreadableRun if there is nothing to draw."""
    if not folder.is_dir():
        raise UnreadableRun(f"{folder} is not a folder: give a run's folder, its --logdir")
    try:
        rows = read_json_lines(folder / "metrics.jsonl")
    except OSError:
        raise UnreadableRun(
            f"{folder} contains no readable metrics.jsonl: give a run's folder, its --logdir"
        ) from None
    rows = [row for row in rows if {"frames", "seconds"} <= row.keys()]
    if not rows:
        raise UnreadableRun(
            f"{folder / 'metrics.jsonl'} has no row yet: a run writes the first within seconds of "
            f"its first frames"
        )
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = {key: np.array([_to_float(row.get(key)) for row in rows]) for key in keys}
    settings = recorded_settings(folder)
    _add_losses_per_step(columns, settings)
    is_current = np.array(find_current(columns["frames"], columns["seconds"]))
    resumes = np.flatnonzero(np.diff(columns["frames"]) < 0) + 1
    return RunSeries(
        folder=folder,
        settings=settings,
        columns={key: column[is_current] for key, column in columns.items()},
        superseded_rows=int(np.sum(~is_current)),
        resumed_at=[float(columns["frames"][i]) for i in resumes if is_current[i]],
    )


def read_returns(folder: Path) -> list[dict[str, Any]]:
    """Read the rows that have a mean return, but those that were replaced after a resume."""
    rows = drop_replaced(read_json_lines(folder / "metrics.jsonl"))
    return [row for row in rows if "episode_return" in row]


def read_all(folders: Sequence[Path]) -> list[RunSeries]:
    """Read the runs that can be drawn.

    Prints why a run is left out; exits if it is the only one or if none is left.
    """
    runs = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
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


def make_curve(run: RunSeries, x: str, y: str) -> Curve | None:
    """Return one run's curve, or None if it has no values.

    A long run's curve is thinned to bins: their means, with each bin's lowest and highest value.
    """
    if y not in run.columns:
        return None
    known = np.isfinite(run.columns[y])
    at, values = run.columns[x][known], run.columns[y][known]
    if not at.size:
        return None
    if at.size <= 2 * MAX_BINS:
        return Curve(at, values, values, values)
    edges = np.linspace(at[0], at[-1], MAX_BINS + 1)[1:-1]
    starts = np.unique(np.concatenate([[0], np.searchsorted(at, edges)]))
    starts = starts[starts < at.size]
    counts = np.diff([*starts, at.size])
    thinned = (
        np.add.reduceat(at, starts) / counts,
        np.add.reduceat(values, starts) / counts,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
    )
    ends = (at[-1], values[-1], values[-1], values[-1])  # the last value itself, not a mean
    return Curve(*(np.append(part, end) for part, end in zip(thinned, ends, strict=True)))


def combine_curves(curves: Sequence[Curve]) -> Curve | None:
    """Return the mean, lowest and highest of several curves, where all of them have values.

    Return None if fewer than two curves are given or if they do not overlap.
    """
    begin, end = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    if len(curves) < 2 or begin >= end:
        return None
    grid = np.linspace(begin, end, _COMBINED_POINTS)
    values = np.stack([np.interp(grid, c.x, c.mean) for c in curves])
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def group_runs(runs: Iterable[RunSeries], pattern: str = "") -> list[RunGroup]:
    """Group the runs whose settings are equal except for the seed.

    The label of a group contains the settings in which the groups differ. The folder's name without
    the seed's number replaces the settings of a run that has none. With `pattern`, a regular
    expression, runs are grouped by the text that it matches in their names.
    """
    groups: dict[Any, list[RunSeries]] = {}
    for run in runs:
        name = run.folder.resolve().name
        key: Any = ("name", _SEED_IN_NAME.sub("", name, count=1))
        if pattern:
            found = re.search(pattern, name)
            key = ("name", (found[1] if found.re.groups else found[0]) if found else name)
        elif run.settings:
            key = tuple(sorted((k, str(v)) for k, v in _experiment_settings(run.settings).items()))
        groups.setdefault(key, []).append(run)
    all_settings = [_experiment_settings(m[0].settings) for m in groups.values() if m[0].settings]
    names = list(dict.fromkeys(name for each in all_settings for name in each))
    differing = [n for n in names if len({str(each.get(n)) for each in all_settings}) > 1]
    return [
        RunGroup(_make_label(key, members[0], differing if len(groups) > 1 else []), members)
        for key, members in groups.items()
    ]


def _make_label(key: Any, run: RunSeries, differing: list[str]) -> str:
    """Return the label of a run's group."""
    if key[:1] == ("name",):
        return key[1]
    if differing:
        return _describe_differences(_experiment_settings(run.settings), differing)
    return run.level or run.folder.resolve().name


def _describe_differences(settings: dict[str, Any], differing: list[str]) -> str:
    """Describe the settings in which a group differs from the others.

    Of more than two settings only those that differ from their default are named.
    """
    named = [n for n in differing if n != "level_name"]
    if len(named) > 2:
        defaults = default_settings(settings)
        named = [n for n in named if settings.get(n) != defaults.get(n)]
    differences = [_format_setting(name, settings.get(name)) for name in named]
    if "level_name" in differing:
        differences.insert(0, str(settings.get("level_name")))
    more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
    return (", ".join(differences[:4]) or "all defaults") + more


def _format_setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no{name}"
    if isinstance(value, int | float):
        return f"{name}={format_number(value) if abs(value) >= 1e5 else f'{value:g}'}"
    return f"{name}={value}"


def _experiment_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that define an experiment.

    A flag that did not exist when the run was made has its default.
    """
    if not settings:
        return {}
    known, others = default_settings(settings) | settings, other_settings()
    return {k: v for k, v in known.items() if k not in others}


def _add_losses_per_step(columns: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Compute the losses per step of rows of an earlier version from those per batch."""
    names = {f"loss/{n}": f"loss_per_step/{n}" for n in ("total", "policy", "baseline", "entropy")}
    names["loss/shift"] = "off_policyness"
    sizes = [settings.get(name) for name in ("batch_size", "unroll_length")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return
    steps = math.prod(sizes) if settings.get("loss_reduction", "sum") == "sum" else 1
    for per_batch, per_step in names.items():
        if per_batch in columns:
            known = columns.get(per_step, np.full_like(columns[per_batch], math.nan))
            computed = columns[per_batch] / steps
            columns[per_step] = np.where(np.isfinite(known), known, computed)


def _to_float(value: Any) -> float:
    return float(value) if is_number(value) else math.nan
