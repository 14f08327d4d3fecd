"""The journal of an experiment, `experiment.jsonl`: every event is a row, and none is changed.

    {"event": "begun", "time": ..., "experiment": {...}}        what must not change
    {"event": "asked", "time": ..., "trial": 3, "values": {...}}
    {"event": "started", ..., "values": {...}, "host": "gpu1", "frontend": [pid, start time]}
    {"event": "stopping", ..., "outcome": "pruned"}
    {"event": "ended", ..., "frames": 20000, "score": 498.1}    or failed, lost, ...

The same command reads it and goes on.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from impala_mm.records.run_contents import drop_replaced, read_records
from launcher.experiments.file import Experiment, Values
from launcher.experiments.trial import METRIC, Trial
from launcher.plan.request import UserError

FILE = "experiment.jsonl"
FINAL = ("ended", "pruned", "failed")  # events after which a trial is over
_MOST_SHOWN = 3  # differences that a refusal names


class Journal:
    """The journal in the folder of an experiment."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        self.rows: list[dict[str, Any]] = read_records(self._path)

    def write(self, event: str, **facts: Any) -> None:
        """Append a row."""
        row = {"event": event, "time": round(time.time(), 1), **facts}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)

    def write_trial(self, event: str, trial: Trial, **facts: Any) -> None:
        """Append a row about a trial."""
        figures = {"frames": trial.frames, "score": trial.score}
        self.write(event, trial=trial.number, **figures, **facts)

    def refuse_changes(self, experiment: Experiment) -> None:
        """Refuse an experiment that is not the one that was begun in this folder.

        The lists of a grid may have more values, which are new trials.
        """
        begun = [row["experiment"] for row in self.rows if row["event"] == "begun"]
        before, now = begun[-1] if begun else {}, experiment.fixed
        if not begun or before == now:
            return
        changes = list(_differences(before, now, may_grow=experiment.kind == "grid"))
        if changes:
            more = f" and {len(changes) - _MOST_SHOWN} more" if changes[_MOST_SHOWN:] else ""
            raise UserError(
                f"{experiment.path} is not the experiment that was begun in {experiment.folder}: "
                f"{'; '.join(changes[:_MOST_SHOWN])}{more}: undo the change, or give another "
                f"--logdir"
            )

    def trials(self, experiment: Experiment) -> list[Trial]:
        """Return all trials that were asked for so far, in order; those that failed are queued."""
        found: dict[int, Trial] = {}
        for row in self.rows:
            if "trial" not in row:
                continue
            number = row["trial"]
            if row["event"] == "asked":
                found[number] = Trial(experiment, number, row["values"])
            trial = found[number]
            trial.values = row.get("values", trial.values)
            trial.frames, trial.score = row.get("frames", 0.0), row.get("score")
            trial.state = row["event"] if row["event"] in ("ended", "pruned") else "queued"
            trial.host = row.get("host", trial.host)
            trial.outcome = row.get("outcome", "")
            if row["event"] == "started":
                trial.frontend = tuple(row["frontend"])
                trial.starts += 1
            if row["event"] in ("started", "stopping"):
                trial.state = "starting"
        return list(found.values())

    @property
    def asked(self) -> dict[int, Values]:
        """The values of all trials so far, by number."""
        return {row["trial"]: row["values"] for row in self.rows if "values" in row}


def record_end(folder: str, number: int) -> None:
    """Write the end of a trial that ran in a Slurm job of its own."""
    rows = read_records(Path(folder) / "trials" / f"{number:03d}" / "metrics.jsonl")
    last: dict[str, Any] = {}
    for row in drop_replaced(rows):
        last |= row
    Journal(Path(folder)).write(
        "ended", trial=number, frames=last.get("frames", 0.0), score=last.get(METRIC)
    )


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], may_grow: bool
) -> Iterator[str]:
    for name in [*before, *(each for each in now if each not in before)]:
        old, new = before.get(name, "unset"), now.get(name, "unset")
        if may_grow and name.startswith("axes.") and "choices" in old and "choices" in new:
            gone = [value for value in old["choices"] if value not in new["choices"]]
            if gone:
                yield f"{name} lacks {gone[0]}"
        elif old != new:
            yield f"{name} is {_text(new)} and was {_text(old)}"


def _text(value: Any) -> str:
    return json.dumps(value) if value != "unset" else "unset"
