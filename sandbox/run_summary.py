"""What a run's folder says besides its curves: in sentences, and as records for tables.

`report.py` puts it on a page. A folder may lack any of these files, or hold older forms of them:
what is not there is left out.
"""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from plot_style import duration
from run_series import Run

from impala_mm.config.settings import Config
from impala_mm.records.bottleneck import verdict

Record = dict[str, Any]
# Flags that say how a process was started, or another run's: they are not for the next start.
_OF_A_START = ("mode", "job_name", "task", "checkpoint", "export_dir", "video_dir")


def headline(run: Run) -> list[str]:
    """What came of it, in sentences."""
    frames, seconds = run.last("frames") or 0.0, run.last("seconds") or 0.0
    after = f"{frames:,.0f} environment frames, {duration(seconds)} of training"
    final = run.last("episode_return")
    if final is None:
        return [f"No hundred games had ended after {after}."]
    best, at = best_return(run)
    count = run.last("games") or 100.0
    said = [f"A mean return of {final:.2f} over the last {count:.0f} games after {after}."]
    if best > final:
        said.append(f"The best was {best:.2f}, at {at:,.0f} frames.")
    if trend := _trend(run):
        said.append(f"{trend}.")
    human = run.last("human_normalised")
    if human is not None:
        said.append(f"Where a random policy's score is 0% and a human's 100%, it is {human:.0%}.")
    evaluations = [record for record in lines(run.folder / "evaluations.jsonl") if games(record)]
    if evaluations:
        played = games(evaluations[-1])
        mean = sum(played) / len(played)
        said.append(f"Its last evaluation: {mean:.2f}, the mean of {len(played)} whole games.")
    goal = run.settings.get("stop_at_return")
    if isinstance(goal, int | float) and np.isfinite(goal):
        reached = "was reached" if best >= goal else "was not reached"
        said.append(f"Its goal, a mean return of {goal:g}, {reached}.")
    return said


def bound(run: Run) -> str:
    """What the run waited for, over its second half; empty where too little is known."""
    half = (run.last("seconds") or 0.0) / 2
    late = run.columns["seconds"] >= half
    row = {}
    for key, column in run.columns.items():
        known = column[late & np.isfinite(column)]
        if known.size:
            row[key] = float(known.mean())
    actors = max(1, round(row["actors"])) if "actors" in row else None
    try:
        return verdict(row, actors) if "wait_share" in row else ""
    except KeyError:  # rows of an older form
        return ""


def best_return(run: Run) -> tuple[float, float]:
    """(return, frames) of the highest mean over 100 games; NaN where there were never as many."""
    column = run.columns["episode_return"]
    if "games" in run.columns:  # older runs did not say
        column = np.where(run.columns["games"] >= 100, column, np.nan)
    if not np.isfinite(column).any():
        return float("nan"), 0.0
    at = int(np.nanargmax(column))
    return float(column[at]), float(run.columns["frames"][at])


def settings(run: Run) -> list[tuple[str, str, str, bool]]:
    """(name, value, default, whether it was changed), changed ones first."""
    defaults = {f.name: f.default for f in dataclasses.fields(Config)}
    rows = [
        (name, _text(value), _text(defaults.get(name, "")), value != defaults.get(name))
        for name, value in run.settings.items()
        if name != "logdir"
    ]
    return sorted(rows, key=lambda row: not row[3])


def checkpoints(folder: Path) -> list[Record]:
    """What each says of itself, oldest first, with its `path` and the newest's `versions`."""
    found = []
    for path in sorted((folder / "checkpoints").glob("[0-9]*/about.json")):
        for about in _records(path.read_text(errors="replace")):
            found.append(about | {"path": path.parent.name})
    known = [r["episode_return"] for r in found if _is_number(r.get("episode_return"))]
    for record in found:
        value = record.get("episode_return")
        record["best"] = bool(known) and value == max(known)
    return found


def lines(path: Path) -> list[Record]:
    """Of a file with a record per line; what is no record is left out."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return [record for line in text.splitlines() for record in _records(line)]


def games(evaluation: Record, what: str = "returns") -> list[float]:
    """Returns, or lengths, of the games of a record of evaluations.jsonl."""
    values = evaluation.get(what)
    return [v for v in values if _is_number(v)] if isinstance(values, list) else []


def commands(run: Run) -> list[tuple[str, str]]:
    """(what for, command): what there is to do next."""
    folder = shlex.quote(str(run.folder))
    changed = [
        f"--{name}={shlex.quote(value)}"
        for name, value, _, changed in settings(run)
        if changed and name not in _OF_A_START
    ]
    train = " ".join(["python experiment.py", *changed, f"--logdir={folder}"])
    return [
        ("Go on, or begin again with other flags in another folder", train),
        (
            "Play whole games with what it has learnt, and film one",
            f"python experiment.py --mode=test --logdir={folder} --video_dir={folder}/videos",
        ),
        ("Take the policy elsewhere", f"python experiment.py --mode=export --logdir={folder}"),
        ("The same curves as a picture", f"python sandbox/plot.py {folder}"),
        ("More curves, in a browser", f"tensorboard --logdir={folder}"),
        ("This page anew", f"python sandbox/plot.py --report {folder}"),
    ]


def _trend(run: Run) -> str:
    """Whether it still learns: the last twentieth of its frames against that before."""
    column, frames = run.columns["episode_return"], run.columns["frames"]
    known = np.isfinite(column)
    column, frames = column[known], frames[known]
    last = frames >= 0.95 * frames[-1]
    before = (frames >= 0.9 * frames[-1]) & ~last
    if last.sum() < 3 or before.sum() < 3:
        return ""
    change = column[last].mean() - column[before].mean()
    share = change / (column.max() - column.min() or 1.0)
    if abs(share) < 0.03:
        return "It had levelled off: its last twentieth is as good as that before"
    return f"It was still {'rising' if share > 0 else 'falling'}, by {change:+.2f} of late"


def _records(text: str) -> list[Record]:
    try:
        record = json.loads(text)
    except ValueError:
        return []
    return [record] if isinstance(record, dict) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    """As it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
