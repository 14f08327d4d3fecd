"""One real run of experiment.py, measured over a window after its start.

`throughput.py` and `plan.py` measure runs with it; `memory.py` starts and stops runs with it.
"""

import contextlib
import ctypes
import itertools
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

from impala_mm.records.run_contents import read_records

ROOT = Path(__file__).resolve().parent.parent.parent
# Flags of a run that `start_run` or its caller sets, so that no user gives them.
SET_HERE = {
    *("logdir", "stop_at_return", "max_seconds", "total_environment_frames"),
    *("learner_hosts", "num_actors"),
}
_METRICS = (  # those that are averaged over the window
    *("wait_share", "actor/waiting_share", "actor/policy_wait_share", "policy_lag", "queue_fill"),
    *("episode_return", "replay_share", "replay_cached_share/elite"),
)
_START_TIMEOUT = 180.0  # seconds within which a run must begin to train
_POLL_SECONDS = 0.05  # seconds between two reads of its metrics


class RunMeasurement(NamedTuple):
    """The speed and the CPU time of a run within its window."""

    steps: float  # per second
    cores: float  # CPU seconds per second of all its processes
    others: float  # CPU seconds per second of all other processes on this machine
    steps_per_update: float  # new ones
    by_role: dict[str, float]  # CPU seconds per step, of actor and learner; the actor's delay
    by_stage: dict[str, float]  # CPU seconds per step
    unknown: dict[str, float]  # CPU seconds per step in the stage `other`, by role and thread
    metrics: dict[str, float]  # means over the window: wait_share, policy_lag, ...

    @property
    def trained(self) -> float:
        """Steps per second that were trained on, replayed ones included."""
        return self.steps / (1.0 - self.metrics.get("replay_share", 0.0))


class RunFailed(Exception):
    """Raised if a run exited or did not begin to train; the message gives the reason."""


def measure_run(flags: Sequence[str], seconds: float, place: str = "actor") -> RunMeasurement:
    """Start a run with these flags, measure it for `seconds` once it trains, and stop it."""
    with start_run(flags) as (process, rows):
        return measure_window(process, rows, seconds, place)


@contextlib.contextmanager
def start_run(flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Start a run with these flags, and yield it with the path of its metrics.jsonl.

    The run stops at the end of the block, or when this process exits. The last lines of the run's
    output are added to a `RunFailed` raised within the block.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "experiment.py"), *flags]
        command += [f"--logdir={folder}/run", "--stop_at_return=1e9", "--max_seconds=1e9"]
        command += ["--total_environment_frames=1e12"]
        with Path(folder, "output").open("w+") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the measuring script
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
    """Return an address of this machine on which no process listens."""
    with socket.create_server(("localhost", 0)) as free:
        return f"localhost:{free.getsockname()[1]}"


def measure_window(
    process: subprocess.Popen, rows: Path, seconds: float, place: str
) -> RunMeasurement:
    """Measure from the second row with updates on, because the first includes the start."""
    begin = _Snapshot(process, rows, 0.0, _START_TIMEOUT)
    begin = _Snapshot(process, rows, begin.row["seconds"], _START_TIMEOUT)
    end = _Snapshot(process, rows, begin.row["seconds"] + seconds - 1.0, seconds + 60)
    elapsed = end.time - begin.time
    within = [row for row in read_records(rows) if begin.row["seconds"] < row["seconds"]]
    steps = _steps_per_second([begin.row, *within])
    by_stage, unknown = thread_cpu.cpu_seconds_by_stage(begin.processes, end.processes, place)
    cores = sum(by_stage.values()) / elapsed
    known = {name: [row[name] for row in within if name in row] for name in _METRICS}
    return RunMeasurement(
        steps=steps,
        cores=cores,
        others=max((end.machine_seconds - begin.machine_seconds) / elapsed - cores, 0.0),
        steps_per_update=_steps_per_update(begin.row, within[-1]),
        by_role={
            name: value / elapsed / steps
            for name, value in thread_cpu.cpu_seconds_by_role(
                begin.processes, end.processes
            ).items()
        },
        by_stage={name: value / elapsed / steps for name, value in by_stage.items()},
        unknown={name: value / elapsed / steps for name, value in unknown.items()},
        metrics={name: sum(values) / len(values) for name, values in known.items() if values},
    )


def _steps_per_second(rows: Sequence[dict]) -> float:
    """Return the steps per second from the last update of the first row to that of the last one.

    Raises RunFailed if no update ended between them.
    """
    seconds = 0.0
    for before, row in itertools.pairwise(rows):
        if row["updates"] > before["updates"]:  # `steps_per_second` is that of these updates
            seconds += (row["steps"] - before["steps"]) / row["steps_per_second"]
    if not seconds:
        raise RunFailed("no update ended while it was measured: give more --seconds")
    return (rows[-1]["steps"] - rows[0]["steps"]) / seconds


def _steps_per_update(first: dict, last: dict) -> float:
    return (last["steps"] - first["steps"]) / (last["updates"] - first["updates"])


def wait_until_training(process: subprocess.Popen, rows: Path) -> None:
    """Wait for the first update; raise RunFailed if there is none."""
    _Snapshot(process, rows, 0.0, _START_TIMEOUT)


class _Snapshot:
    """The first row after the given seconds of training, with the CPU times at its arrival."""

    def __init__(self, process: subprocess.Popen, rows: Path, after_seconds: float, timeout: float):
        deadline = time.monotonic() + timeout
        while True:
            if process.poll() is not None:
                raise RunFailed(f"the run exited with code {process.returncode}")
            if time.monotonic() > deadline:
                raise RunFailed(f"the run did not reach {after_seconds:.0f} s of training in time")
            new = [
                row
                for row in read_records(rows)[-1:]
                if row["seconds"] > after_seconds and row["updates"]
            ]
            if new:
                break
            time.sleep(_POLL_SECONDS)
        self.row = new[0]
        self.time = time.monotonic()
        self.processes = thread_cpu.snapshot(process.pid)
        self.machine_seconds = thread_cpu.machine_cpu_seconds()


def _stop(process: subprocess.Popen) -> None:
    """Stop a run and all processes that it started."""
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
