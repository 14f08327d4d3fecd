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
_START_TIMEOUT = 180.0  # seconds after which a run that has not trained will not
_POLL_SECONDS = 0.05  # seconds between two looks at its metrics


class RunMeasurement(NamedTuple):
    """The speed and the CPU time of a run within its window."""

    steps: float  # per second
    cores: float  # CPU seconds per second, of all its processes
    others: float  # and of everybody else on this machine
    by_stage: dict[str, float]  # CPU seconds per step
    unknown: dict[str, float]  # of the stage `other`, by role and name of the thread
    metrics: dict[str, float]  # means over the window: wait_share, policy_lag, ...


class RunFailed(Exception):
    """Raised where a run ended, or did not begin; says how."""


def measure_run(flags: Sequence[str], seconds: float, place: str = "actor") -> RunMeasurement:
    """Starts a run with these flags, waits until it trains, measures for `seconds`, ends it."""
    with start_run(flags) as (process, rows):
        return _measure_window(process, rows, seconds, place)


@contextlib.contextmanager
def start_run(flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Starts a run with these flags, and yields it with its metrics.jsonl.

    It ends with the block, or with this process. A `RunFailed` from within says what the run
    printed last.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "experiment.py"), *flags]
        command += [f"--logdir={folder}/run", "--stop_at_return=1e9", "--max_seconds=1e9"]
        with Path(folder, "output").open("w+") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for who measures
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # noqa: PLW1509
            )
            try:
                yield process, Path(folder, "run", "metrics.jsonl")
            except RunFailed as error:
                output.seek(0)
                last = "\n".join(output.read().strip().splitlines()[-5:])
                raise RunFailed(f"{error}: {' '.join(command[1:])}\n{last}") from None
            finally:
                _stop(process)


def free_address() -> str:
    """Returns an address of this machine where no process listens."""
    with socket.create_server(("localhost", 0)) as free:
        return f"localhost:{free.getsockname()[1]}"


def _measure_window(
    process: subprocess.Popen, rows: Path, seconds: float, place: str
) -> RunMeasurement:
    """Measures from the second row that has updates: the first holds the start."""
    begin = _Snapshot(process, rows, 0.0, _START_TIMEOUT)
    begin = _Snapshot(process, rows, begin.row["seconds"], _START_TIMEOUT)
    end = _Snapshot(process, rows, begin.row["seconds"] + seconds - 1.0, seconds + 60)
    elapsed = end.time - begin.time
    steps = (end.row["steps"] - begin.row["steps"]) / (end.row["seconds"] - begin.row["seconds"])
    by_stage, unknown = thread_cpu.cpu_seconds_by_stage(begin.processes, end.processes, place)
    cores = sum(by_stage.values()) / elapsed
    within = [row for row in _read_rows(rows) if begin.row["seconds"] < row["seconds"]]
    metrics = {}
    for name in ("wait_share", "policy_lag", "queue_fill", "episode_return"):
        values = [row[name] for row in within if name in row]
        if values:
            metrics[name] = sum(values) / len(values)
    return RunMeasurement(
        steps=steps,
        cores=cores,
        others=max((end.machine_seconds - begin.machine_seconds) / elapsed - cores, 0.0),
        by_stage={name: value / elapsed / steps for name, value in by_stage.items()},
        unknown={name: value / elapsed / steps for name, value in unknown.items()},
        metrics=metrics,
    )


def wait_until_training(process: subprocess.Popen, rows: Path) -> None:
    """Waits for the first update; raises RunFailed where there is none."""
    _Snapshot(process, rows, 0.0, _START_TIMEOUT)


class _Snapshot:
    """The first row after so many seconds of training, and what the CPU had done when it came."""

    def __init__(self, process: subprocess.Popen, rows: Path, after_seconds: float, timeout: float):
        deadline = time.monotonic() + timeout
        while True:
            if process.poll() is not None:
                raise RunFailed(f"the run ended with code {process.returncode}")
            if time.monotonic() > deadline:
                raise RunFailed(f"the run has not come to {after_seconds:.0f} s of training")
            new = [
                row
                for row in _read_rows(rows)[-1:]
                if row["seconds"] > after_seconds and row["updates"]
            ]
            if new:
                break
            time.sleep(_POLL_SECONDS)
        self.row = new[0]
        self.time = time.monotonic()
        self.processes = thread_cpu.snapshot(process.pid)
        self.machine_seconds = thread_cpu.machine_cpu_seconds()


def _read_rows(rows: Path) -> list[dict]:
    """Reads the lines that are complete."""
    text = rows.read_text() if rows.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _stop(process: subprocess.Popen) -> None:
    """Ends a run, and all that it started with it."""
    processes = thread_cpu.process_tree(process.pid)
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        for each in processes:
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
