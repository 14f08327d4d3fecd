"""A run's folder as sentences and as rows of tables, for its report.

A folder may lack any of the files read here, or contain files that an earlier version wrote; what
is missing is omitted.
"""

import shlex

import numpy as np

from impala_mm.config import messages
from impala_mm.records import run_contents
from impala_mm.records.bottleneck import describe_bottleneck
from impala_mm.records.metric_descriptions import GROUPS
from impala_mm.records.run_contents import Panel, SettingRow, game_values, is_number, read_records
from impala_mm.runtime.timing import format_duration
from sandbox.results.runs import RunSeries

_REPLAY = GROUPS["Replay"]
# The statistics of replay that are drawn, with their titles.
_DRAWN = {
    "replay_age": "Age of replayed unrolls",
    "replay_uses": "Earlier draws of replayed unrolls",
    "replay_unrolls": "Unrolls held",
    "replay_priority_spread": "Spread of priorities",
    "replay_distance": "Distance of drawn unrolls",
    "replay_cached_share": "Distances that were known",
}


def command() -> str:
    """Return how the user calls this program."""
    program = messages.program()
    return "impala-mm results" if program == "impala-mm" else "python sandbox/results"


def summarise(run: RunSeries) -> list[str]:
    """Return sentences about the run's result."""
    frames, seconds = run.last("frames") or 0.0, run.last("seconds") or 0.0
    after = f"{frames:,.0f} environment frames, {format_duration(seconds)} of training"
    final = run.last("episode_return")
    if final is None:
        return [f"Fewer than 100 games ended in {after}."]
    best, at = best_return(run)
    count = run.last("games") or 100.0
    sentences = [f"Mean return {final:.2f} over the last {count:.0f} games after {after}."]
    if best > final:
        sentences.append(f"The best mean return was {best:.2f}, at {at:,.0f} frames.")
    if trend := _describe_trend(run):
        sentences.append(f"{trend}.")
    score = run.last("normalised_score")
    if score is not None:
        sentences.append(
            f"Its normalised score is {score:.0%} (a random policy: 0%, a human or the best "
            f"possible play: 100%)."
        )
    evaluations = [
        record for record in read_records(run.folder / "evaluations.jsonl") if game_values(record)
    ]
    if evaluations:
        played = game_values(evaluations[-1])
        mean = sum(played) / len(played)
        sentences.append(
            f"Last evaluation: mean return {mean:.2f} over {len(played)} complete games."
        )
    goal = run.settings.get("stop_at_return")
    if is_number(goal) and np.isfinite(goal):
        reached = "reached" if best >= goal else "did not reach"
        sentences.append(f"The run {reached} its goal, a mean return of {goal:g}.")
    return sentences


def describe_late_bottleneck(run: RunSeries) -> str:
    """Describe the bottleneck in the second half of the run; empty if too little is known."""
    half = (run.last("seconds") or 0.0) / 2
    late = run.columns["seconds"] >= half
    row = {}
    for key, column in run.columns.items():
        known = column[late & np.isfinite(column)]
        if known.size:
            row[key] = float(known.mean())
    if row.get("actors") == 0.0 or run.settings.get("deterministic_run"):
        return ""  # a source of its own, or turns: nothing below is about these
    actors = max(1, round(row["actors"])) if "actors" in row else None
    try:
        return describe_bottleneck(row, actors) if "wait_share" in row else ""
    except KeyError:  # an earlier version wrote the rows
        return ""


def best_return(run: RunSeries) -> tuple[float, float]:
    """Return (return, frames) of the highest mean over 100 games; NaN if fewer games ended."""
    column = run.columns.get("episode_return", np.array([]))
    if column.size and "games" in run.columns:  # earlier versions did not record it
        column = np.where(run.columns["games"] >= 100, column, np.nan)
    if not np.isfinite(column).any():
        return float("nan"), 0.0
    at = int(np.nanargmax(column))
    return float(column[at]), float(run.columns["frames"][at])


def list_settings(run: RunSeries) -> list[SettingRow]:
    """List the run's settings except its folder, changed ones first."""
    return run_contents.list_settings({k: v for k, v in run.settings.items() if k != "logdir"})


def next_commands(run: RunSeries) -> list[tuple[str, str]]:
    """List (purpose, command) of what can be done next with the run."""
    folder = shlex.quote(str(run.folder))
    settings = shlex.quote(str(run.folder / "settings.json"))
    learners = run.settings.get("num_learners", 1)
    several = f" --num_learners={learners}" if learners > 1 else ""
    program = messages.program()
    return [
        (
            "Continue the run, or train with other flags in another folder",
            f"{program} --config={settings} --logdir={folder}{several}",
        ),
        (
            "Evaluate the policy on complete games, and record a video",
            f"{program} --mode=test --logdir={folder} --video_dir={folder}/videos",
        ),
        ("Export the policy", f"{program} --mode=export --logdir={folder}"),
        ("Draw these curves as a figure", f"{command()} plot {folder}"),
        ("Show more curves in a browser", f"tensorboard --logdir={folder}"),
        ("Write this report again", f"{command()} report {folder}"),
    ]


def replay_panels(run: RunSeries) -> list[Panel]:
    """Return a panel for each statistic of replay that is drawn and that the run has."""
    panels = []
    for key in _replay_keys(run):
        name, _, part = key.partition("/")
        if name in _DRAWN and not part.startswith("learner"):
            title = f"{_DRAWN[name]}, {part}" if part else _DRAWN[name]
            unit = _REPLAY[name].unit
            panels.append(Panel(key, key, title, unit, share=unit == "share"))
    return panels


def list_replay(run: RunSeries) -> list[list[str]]:
    """Return a row for each statistic: key, mean of the run's second half, last, unit, meaning."""
    late = run.columns["frames"] >= (run.last("frames") or 0.0) / 2
    rows = []
    for key in _replay_keys(run):
        column, found = run.columns[key], _REPLAY[_replay_name(key)]
        known = np.isfinite(column)
        mean = column[late & known].mean() if (late & known).any() else np.nan
        rows.append([key, f"{mean:.4g}", f"{column[known][-1]:.4g}", found.unit, found.meaning])
    return rows


def _replay_keys(run: RunSeries) -> list[str]:
    """Return the keys of the statistics that the run has, those of one name together."""
    if "replay_share" not in run.columns:
        return []
    names = list(_REPLAY)
    keys = [key for key in run.columns if _replay_name(key) in _REPLAY]
    keys = [key for key in keys if run.last(key) is not None]
    return sorted(keys, key=lambda key: (names.index(_replay_name(key)), key))


def _replay_name(key: str) -> str:
    """Return a key without the kind of replay or the learner that it may end in."""
    return key if key in _REPLAY else key.partition("/")[0]


def _describe_trend(run: RunSeries) -> str:
    """Describe the trend: compare the last twentieth of the frames with the one before it."""
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
        return "The return had levelled off: in the last twentieth of the frames it hardly changed"
    direction = "rising" if share > 0 else "falling"
    return f"The return was still {direction}: {change:+.2f} in the last twentieth of the frames"
