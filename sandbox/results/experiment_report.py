"""A report of an experiment, EXPERIMENT/report.html: which values are best, over seeds and levels.

It is written from the journal of the experiment and the folders of its trials. The comparison has
the trials that have ended with a mean return; all others are in the table alone.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from impala_mm.config import flags
from impala_mm.records.run_contents import read_json_lines
from launcher.experiments.file import format_value
from launcher.experiments.journal import FILE
from launcher.experiments.trial import SETTINGS
from sandbox.results import compare, report, runs
from sandbox.results.runs import RunSeries


def is_experiment(folder: Path) -> bool:
    """Return whether a folder is that of an experiment."""
    return (folder / FILE).exists()


def write_report(folder: Path) -> Path:
    """Write the report and its picture, and return the report's path; print the table."""
    trials = _read_trials(folder)
    paths = [
        folder / "trials" / name
        for name, each in trials.items()
        if each["state"] == "ended" and each.get("score") is not None
    ]
    if not paths:
        flags.refuse(f"{folder}: no trial has ended with a mean return yet")
    ended = runs.read_all(paths)
    found = compare.summarise(ended)
    picture = folder / "report.svg"
    compare.draw(found, picture)
    print(compare.table(found))
    svg = re.sub(r"^.*?(?=<svg)", "", picture.read_text(), flags=re.DOTALL)
    numbers = {2, 3, 4, 5}
    parts = [
        f"<header><h1>{folder.resolve().name}</h1>"
        f'<p class="soft">{len(trials)} trials, {len(ended)} of them ended with a '
        f"mean return</p></header>",
        report.render_section("Best", _render_best(ended, found)),
        report.render_section("Curves", f'<div class="card">{svg}</div>'),
        report.render_section(
            "Settings", report.render_table(compare.COLUMNS, compare.rows(found), numbers=numbers)
        ),
        report.render_section("Trials", _render_trials(trials)),
    ]
    return report.write_page(folder, report.make_page(folder.resolve().name, parts))


def _read_trials(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the values, the last state and the last return of each trial, by its folder's name."""
    found: dict[str, dict[str, Any]] = {}
    for row in read_json_lines(folder / FILE):
        if "trial" in row:
            trial = found.setdefault(f"{row['trial']:03d}", {})
            if row["event"] == "started":
                trial.pop("why", None)  # of the start before
            trial |= row | {"state": row["event"]}
    return found


def _render_best(ended: list[RunSeries], found: dict[str, Any]) -> str:
    """Render each level's best settings, by interquartile means, as a file for --config."""
    texts = []
    for level, kinds in found["levels"].items():
        ends = {k: np.array(about["frames"]["returns"])[:, -1] for k, about in kinds.items()}
        best = max(ends, key=lambda kind: float(compare.interquartile_mean(ends[kind])))
        low, high = compare.bootstrap_band(ends[best])
        groups = runs.group_runs([run for run in ended if run.level == level])
        trial = next(group.runs[0].folder for group in groups if group.label == best)
        lines = (trial / SETTINGS).read_text().splitlines()
        settings = "\n".join(line for line in lines if not line.startswith(("#", "seed =")))
        texts.append(
            f"<p>{report.escape(level)}: <b>{report.escape(best)}</b>, return "
            f"{compare.interquartile_mean(ends[best]):.2f} ({low:.2f} to {high:.2f}) over "
            f"{len(ends[best])} seeds. A file for --config:</p><pre>{report.escape(settings)}</pre>"
        )
    return "".join(texts)


def _render_trials(trials: dict[str, dict[str, Any]]) -> str:
    axes = list(dict.fromkeys(name for trial in trials.values() for name in trial["values"]))
    rows = [
        [
            name,
            *(format_value(trial["values"][axis]) for axis in axes),
            trial["state"],
            f"{trial.get('frames') or 0:,.0f}",
            "-" if trial.get("score") is None else f"{trial['score']:.2f}",
            str(trial.get("why", "")),
        ]
        for name, trial in trials.items()
    ]
    numbers = {*range(1, len(axes) + 1), len(axes) + 2, len(axes) + 3}
    return report.render_table(
        ["trial", *axes, "state", "frames", "return", "why"], rows, numbers=numbers
    )
