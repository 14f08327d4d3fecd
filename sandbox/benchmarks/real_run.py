"""One real run of experiment.py, measured over a window once it is warm.

`throughput.py` starts one for each point of its grid, again and again.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import thread_cpu

ROOT = Path(__file__).resolve().parent.parent.parent
_START = 180.0  # seconds after which a run that has not trained will not
_LOOK = 0.05  # seconds between two looks at its metrics


class Ran(NamedTuple):
    """What a run did within its window."""

    steps: float  # per second
    cores: float  # CPU seconds per second, of all its processes
    others: float  # and of everybody else on this machine
    by_stage: dict[str, float]  # CPU seconds per step
    unknown: dict[str, float]  # of the stage `other`, by role and name of the thread
    metrics: dict[str, float]  # means over the window: wait_share, policy_lag, ...


class Failed(Exception):
    """The run ended, or did not begin; says how."""


def run(flags: Sequence[str], seconds: float, place: str = "actor") -> Ran:
    """Starts a run with these flags, waits until it trains, measures for `seconds`, ends it."""
    with started(flags) as (process, rows):
        return _watch(process, rows, seconds, place)


@contextlib.contextmanager
def started(flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A run with these flags and its metrics.jsonl; it ends with the block, or with this process.

    A `Failed` from within says what the run printed last.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "experiment.py"), *flags]
        command += [f"--logdir={folder}/run", "--stop_at_return=1e9", "--max_seconds=1e9"]
        with Path(folder, "said").open("w+") as said:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for who measures
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # noqa: PLW1509
            )
            try:
                yield process, Path(folder, "run", "metrics.jsonl")
            except Failed as error:
                said.seek(0)
                last = "\n".join(said.read().strip().splitlines()[-5:])
                raise Failed(f"{error}: {' '.join(command[1:])}\n{last}") from None
            finally:
                _end(process)


def free_address() -> str:
    """Of this machine, where nobody listens."""
    with socket.create_server(("localhost", 0)) as free:
        return f"localhost:{free.getsockname()[1]}"


def _watch(process: subprocess.Popen, rows: Path, seconds: float, place: str) -> Ran:
    """From the second row that has updates: the first holds the start."""
    begin = _Mark(process, rows, 0.0, _START)
    begin = _Mark(process, rows, begin.row["seconds"], _START)
    end = _Mark(process, rows, begin.row["seconds"] + seconds - 1.0, seconds + 60)
    took = end.at - begin.at
    steps = (end.row["steps"] - begin.row["steps"]) / (end.row["seconds"] - begin.row["seconds"])
    by_stage, unknown = thread_cpu.spent(begin.processes, end.processes, place)
    cores = sum(by_stage.values()) / took
    within = [row for row in _read(rows) if begin.row["seconds"] < row["seconds"]]
    metrics = {}
    for name in ("wait_share", "policy_lag", "queue_fill", "episode_return"):
        values = [row[name] for row in within if name in row]
        if values:
            metrics[name] = sum(values) / len(values)
    return Ran(
        steps=steps,
        cores=cores,
        others=max((end.machine - begin.machine) / took - cores, 0.0),
        by_stage={name: value / took / steps for name, value in by_stage.items()},
        unknown={name: value / took / steps for name, value in unknown.items()},
        metrics=metrics,
    )


def wait_until_it_trains(process: subprocess.Popen, rows: Path) -> None:
    """Raises Failed where it does not."""
    _Mark(process, rows, 0.0, _START)


class _Mark:
    """The first row after so many seconds of training, and what the CPU had done when it came."""

    def __init__(self, process: subprocess.Popen, rows: Path, after: float, patience: float):
        deadline = time.monotonic() + patience
        while True:
            if process.poll() is not None:
                raise Failed(f"the run ended with code {process.returncode}")
            if time.monotonic() > deadline:
                raise Failed(f"the run has not come to {after:.0f} s of training")
            new = [row for row in _read(rows)[-1:] if row["seconds"] > after and row["updates"]]
            if new:
                break
            time.sleep(_LOOK)
        self.row = new[0]
        self.at = time.monotonic()
        self.processes = thread_cpu.snapshot(process.pid)
        self.machine = thread_cpu.machine()


def _read(rows: Path) -> list[dict]:
    """Whole lines alone."""
    text = rows.read_text() if rows.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _end(process: subprocess.Popen) -> None:
    """Ends a run, and all that it started with it."""
    family = thread_cpu.family(process.pid)
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        for each in family:
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
