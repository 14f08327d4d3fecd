"""What a run's folder says besides its curves: in sentences, and as records for tables.

`report.py` puts it on a page. A folder may lack any of these files, or hold older forms of them:
what is not there is left out.
"""

import contextlib
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from run_series import RunSeries

from impala_mm.records import settings_table
from impala_mm.records.bottleneck import describe_bottleneck
from impala_mm.records.json_lines import read_json_lines
from impala_mm.records.settings_table import SettingRow
from impala_mm.runtime.durations import format_duration

Record = dict[str, Any]
# Flags that say how a process was started, or another run's: they are not for the next start.
_FLAGS_OF_A_START = ("mode", "job_name", "task", "checkpoint", "export_dir", "video_dir")


def summarise(run: RunSeries) -> list[str]:
    """Says in sentences what came of a run."""
    frames, seconds = run.last("frames") or 0.0, run.last("seconds") or 0.0
    after = f"{frames:,.0f} environment frames, {format_duration(seconds)} of training"
    final = run.last("episode_return")
    if final is None:
        return [f"No hundred games had ended after {after}."]
    best, at = best_return(run)
    count = run.last("games") or 100.0
    sentences = [f"A mean return of {final:.2f} over the last {count:.0f} games after {after}."]
    if best > final:
        sentences.append(f"The best was {best:.2f}, at {at:,.0f} frames.")
    if trend := _describe_trend(run):
        sentences.append(f"{trend}.")
    human = run.last("human_normalised")
    if human is not None:
        sentences.append(
            f"Where a random policy's score is 0% and a human's 100%, it is {human:.0%}."
        )
    evaluations = [
        record for record in read_records(run.folder / "evaluations.jsonl") if game_values(record)
    ]
    if evaluations:
        played = game_values(evaluations[-1])
        mean = sum(played) / len(played)
        sentences.append(f"Its last evaluation: {mean:.2f}, the mean of {len(played)} whole games.")
    goal = run.settings.get("stop_at_return")
    if isinstance(goal, int | float) and np.isfinite(goal):
        reached = "was reached" if best >= goal else "was not reached"
        sentences.append(f"Its goal, a mean return of {goal:g}, {reached}.")
    return sentences


def describe_late_bottleneck(run: RunSeries) -> str:
    """Says what the run waited for, over its second half; empty where too little is known."""
    half = (run.last("seconds") or 0.0) / 2
    late = run.columns["seconds"] >= half
    row = {}
    for key, column in run.columns.items():
        known = column[late & np.isfinite(column)]
        if known.size:
            row[key] = float(known.mean())
    actors = max(1, round(row["actors"])) if "actors" in row else None
    try:
        return describe_bottleneck(row, actors) if "wait_share" in row else ""
    except KeyError:  # rows of an older form
        return ""


def best_return(run: RunSeries) -> tuple[float, float]:
    """Returns (return, frames) of the highest mean over 100 games; NaN if there were fewer."""
    column = run.columns["episode_return"]
    if "games" in run.columns:  # older runs did not say
        column = np.where(run.columns["games"] >= 100, column, np.nan)
    if not np.isfinite(column).any():
        return float("nan"), 0.0
    at = int(np.nanargmax(column))
    return float(column[at]), float(run.columns["frames"][at])


def list_settings(run: RunSeries) -> list[SettingRow]:
    """List the run's settings but for its folder, changed ones first."""
    return settings_table.list_settings({k: v for k, v in run.settings.items() if k != "logdir"})


def read_checkpoints(folder: Path) -> list[Record]:
    """Reads what each says of itself, oldest first, with its `path` and the newest's `versions`."""
    found = []
    for path in sorted((folder / "checkpoints").glob("[0-9]*/about.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):  # one that was cut off
            found.append(json.loads(path.read_text()) | {"path": path.parent.name})
    known = [r["episode_return"] for r in found if _is_number(r.get("episode_return"))]
    for record in found:
        value = record.get("episode_return")
        record["best"] = bool(known) and value == max(known)
    return found


def read_records(path: Path) -> list[Record]:
    """Reads a file with a record per line; none where there is no such file."""
    try:
        return read_json_lines(path)
    except OSError:
        return []


def game_values(evaluation: Record, key: str = "returns") -> list[float]:
    """Gets the returns, or the lengths, of the games of a record of evaluations.jsonl."""
    values = evaluation.get(key)
    return [v for v in values if _is_number(v)] if isinstance(values, list) else []


def next_commands(run: RunSeries) -> list[tuple[str, str]]:
    """Lists (what for, command) of what can be done next."""
    folder = shlex.quote(str(run.folder))
    changed = [
        f"--{name}={shlex.quote(value)}"
        for name, value, _, changed in list_settings(run)
        if changed and name not in _FLAGS_OF_A_START
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


def _describe_trend(run: RunSeries) -> str:
    """Says whether it still learns: the last twentieth of its frames against that before."""
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
