"""LOGDIR/evaluations.jsonl: a line for each level that was played with a checkpoint.

    time, by              when, and who: test, or evaluator
    level, checkpoint, updates, frames, deterministic, seed, num_envs, options
                          what was played, with what: as in `games.Evaluation`
    returns, lengths      of each game, raw and in steps
    idle                  games that were cut, for nothing had been gained for so long
    mean, median, deviation, least, most, mean_length
    human_normalised      the mean's, where a human's score is known

Written by the jobs `evaluate` and `evaluator`; the latter reads which checkpoints it has had.
"""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from impala_mm.evaluation import statistics
from impala_mm.evaluation.games import Evaluation


def path_of(logdir: Path) -> Path:
    """Of a run."""
    return logdir / "evaluations.jsonl"


def make_row(result: Evaluation, by: str) -> dict[str, Any]:
    """What is written of it."""
    kept: dict[str, Any] = result._asdict()
    kept.pop("scores")
    of_returns = statistics.summarise(result.returns)._asdict()
    row: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "by": by} | kept
    # NaN is no JSON: a single game has no deviation.
    row |= {name: value for name, value in of_returns.items() if math.isfinite(value)}
    row["mean_length"] = statistics.summarise(result.lengths).mean
    if result.scores:
        row["human_normalised"] = statistics.normalised([result.mean], result.scores)[0]
    return row


def append_row(logdir: Path, row: dict[str, Any]) -> Path:
    """In one write, so that several who test a run do not mix their lines; raises OSError."""
    path = path_of(logdir)
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(number, (json.dumps(row) + "\n").encode())
    finally:
        os.close(number)
    return path


def read_rows(logdir: Path) -> list[dict[str, Any]]:
    """All that can be read: a line that was cut by a full disk is passed over."""
    rows = []
    try:
        lines = path_of(logdir).read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in rows if isinstance(row, dict)]
