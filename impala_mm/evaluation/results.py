"""The results of evaluations: statistics, tables on the screen, and LOGDIR/evaluations.jsonl.

The file has a line for each level that was evaluated with a checkpoint:

    time, by              when, and by which job: test or evaluator
    level, checkpoint, updates, frames, deterministic, seed, num_envs, options
                          what was played and how, see `Evaluation`
    returns, lengths      raw return and length in steps of each game
    idle                  number of games that were ended for lack of reward
    won, drawn, lost      number of games with these results, where agents take turns
    video                 path of the video of the first game, with --video_dir; it is relative to
                          LOGDIR if it is in LOGDIR
    mean, median, deviation, least, most, mean_length
    normalised_score      the mean from 0 to 1, see `ReferenceScores`, where that is known

The jobs `evaluate` and `evaluator` write it; the evaluator reads which checkpoints it has tested.
"""

import errno
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_mm.environments.types import ReferenceScores
from impala_mm.runtime.safe_files import to_json

_TRIMMED = 0.25  # share that the interquartile mean leaves out on each side


class Game(NamedTuple):
    """One complete game."""

    episode_return: float  # raw
    length: int  # steps
    idle: bool  # whether it was ended because it brought no reward for long
    score: float = 0.5  # against opponents: 1 if it was won, 0 if it was lost


class Evaluation(NamedTuple):
    """The games of one level, and how they were played."""

    level: str
    checkpoint: str  # the folder of the checkpoint
    updates: int
    frames: float  # frames that the policy was trained on
    deterministic: bool
    seed: int
    num_envs: int
    options: dict[str, Any]  # options of the environments
    scores: ReferenceScores | None
    returns: list[float]
    lengths: list[int]  # in steps
    idle: int  # number of games that were ended because they brought no reward for long
    results: Sequence[float] = ()  # against opponents: 1, 0.5 and 0 for games won, drawn and lost

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return summarise(self.returns).mean

    @property
    def normalised_score(self) -> list[float]:
        """The returns on the scale of `ReferenceScores`; empty where that is not known."""
        return normalised(self.returns, self.scores) if self.scores else []


def path_of(logdir: Path) -> Path:
    """Return the path of a run's evaluations."""
    return logdir / "evaluations.jsonl"


def make_row(
    result: Evaluation, by: str, logdir: Path | None = None, video: Path | None = None
) -> dict[str, Any]:
    """Return the row of an evaluation of the run in `logdir`, with its video if there is one.

    `by`: the job that made it, test or evaluator. The video's path is relative to `logdir` if it is
    inside: a folder that is moved takes such videos with it.
    """
    kept: dict[str, Any] = result._asdict()
    kept.pop("scores")
    if won_drawn_lost := count_results(kept.pop("results")):
        kept |= won_drawn_lost
    of_returns = summarise(result.returns)._asdict()
    row: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "by": by} | kept
    # The deviation of a single game is NaN.
    row |= {name: value for name, value in of_returns.items() if math.isfinite(value)}
    row["mean_length"] = summarise(result.lengths).mean
    if result.scores:
        row["normalised_score"] = normalised([result.mean], result.scores)[0]
    if logdir and video and video.exists():
        path, folder = video.resolve(), logdir.resolve()
        row["video"] = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
    return row


def count_results(results: Sequence[float]) -> dict[str, int]:
    """Return how many games against opponents were won, drawn and lost; empty without opponents."""
    if not results:
        return {}
    return {name: results.count(x) for name, x in (("won", 1.0), ("drawn", 0.5), ("lost", 0.0))}


def append_row(logdir: Path, row: dict[str, Any]) -> Path:
    """Append a row and return the file's path; raises OSError.

    The row is one write, so that jobs that evaluate the same run do not mix their lines.
    """
    path = path_of(logdir)
    line = (to_json(row) + "\n").encode()
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(number, line) < len(line):  # the next row appends to this half
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(number)
    return path


def level_table(result: Evaluation) -> str:
    """Return the results of a level as a table."""
    quantities: dict[str, Sequence[float]] = {
        "return": result.returns,
        "length in steps": result.lengths,
    }
    if result.scores:
        quantities["normalised"] = result.normalised_score
    rows = [[name, *map(number, summarise(values))] for name, values in quantities.items()]
    head = [result.level, "mean", "median", "deviation", "least", "most"]
    how = "most likely actions" if result.deterministic else "actions sampled from the policy"
    lines = [
        table(head, rows),
        f"complete games: {len(result.returns)}, {result.num_envs} at a time; {how}; seed "
        f"{result.seed}; checkpoint of {result.frames:,.0f} frames",
    ]
    if counts := count_results(result.results):
        against = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        lines.append(f"against {result.options['opponents']}: {against}")
    if result.idle:
        limit = result.options["no_reward_steps"]
        lines.append(f"games ended after {limit:,} steps without reward: {result.idle}")
    return "\n".join(lines)


def overview_table(results: Sequence[Evaluation]) -> str:
    """Return a table of all levels, and the statistics that papers report over many games."""
    rows, scores, pooled = [], [], []
    for result in results:
        score = float("nan")
        if result.scores:
            (score,) = normalised([result.mean], result.scores)
            scores.append(score)
            pooled += result.normalised_score
        rows.append([result.level, number(result.mean), number(score)])
    lines = [table(["level", "mean return", "normalised"], rows)]
    if scores:
        of = summarise(scores)
        lines.append(
            f"normalised over {len(scores)} levels: median {number(of.median)}, mean "
            f"{number(of.mean)}, capped at 1 each {number(capped_mean(scores))}, "
            f"interquartile mean "
            f"{number(interquartile_mean(pooled))} (of all {len(pooled)} games played, "
            f"pooled)"
        )
    return "\n".join(lines)


class Summary(NamedTuple):
    """The statistics of one quantity over games."""

    mean: float
    median: float
    deviation: float  # sample standard deviation (n - 1); NaN for a single value
    least: float
    most: float


def summarise(values: Sequence[float]) -> Summary:
    """Return the statistics of one or more values."""
    array = np.asarray(values, np.float64)
    deviation = float(array.std(ddof=1)) if len(array) > 1 else float("nan")
    return Summary(
        float(array.mean()),
        float(np.median(array)),
        deviation,
        float(array.min()),
        float(array.max()),
    )


def normalised(values: Sequence[float], scores: ReferenceScores) -> list[float]:
    """Return values normalised: 0 is the low score, 1 the high one."""
    return [(value - scores.low) / (scores.high - scores.low) for value in values]


def capped_mean(scores: Sequence[float]) -> float:
    """Return the mean of levels' normalised scores of which each counts at most as 1."""
    return float(np.minimum(scores, 1.0).mean())


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and highest quarter, each rounded down to full values."""
    array = np.sort(np.asarray(values, np.float64))
    cut = int(_TRIMMED * len(array))
    return float(array[cut : len(array) - cut].mean())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text table whose first column is left-aligned and the others right-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float) -> str:
    """Return a number as text for a table; "-" for NaN."""
    return "-" if np.isnan(value) else f"{value:,.2f}"
