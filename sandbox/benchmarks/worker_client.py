"""A measuring process (`worker.py`), seen from who asks it.

That is `components.py`, `wire_costs.py`, `host_costs.py` and `compression.py`.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from impala_mm.config.settings import Config

_WORKER = Path(__file__).resolve().parent / "worker.py"


class WorkerProcess:
    """A measuring process."""

    def __init__(self, config: Config, threads: int, gpus: bool = True):
        """It sees the GPUs that this process sees, if any, or none; 0 threads: as a learner has."""
        given = [
            f"--{f.name}={getattr(config, f.name)}"
            for f in dataclasses.fields(config)
            if getattr(config, f.name) != f.default
        ]
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(threads), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            start_new_session=True,  # Ctrl-C is for who measures
        )

    def request(self, **message: Any) -> dict[str, Any]:
        """Sends a message, and returns its answer."""
        self.send(**message)
        return self.receive()

    def send(self, **message: Any) -> None:
        """Sends a message without waiting for its answer."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # `receive` says so
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Waits for the answer to the message that was sent."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"error: a measuring process ended with code {self._process.wait()}")
        return json.loads(line)

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.wait()


def request_all(processes: list[WorkerProcess], **message: Any) -> list[dict[str, Any]]:
    """Sends all the same message at once, and returns their answers."""
    for process in processes:
        process.send(**message)
    return [process.receive() for process in processes]


def measure_concurrently(
    processes: list[WorkerProcess], seconds: float, task: str, batch: int
) -> float:
    """Measures the core-seconds of a step where all do the same; the task is ready."""
    return core_seconds_per_step(
        request_all(processes, measure_seconds=seconds, task=task, batch=batch)
    )


def core_seconds_per_step(answers: list[dict[str, Any]]) -> float:
    """Returns the core-seconds per step from the answers of processes that measured a task."""
    return sum(a["cpu"] for a in answers) / sum(a["steps"] for a in answers)


def measure_both_ends(
    learner: WorkerProcess,
    actor: WorkerProcess,
    seconds: float,
    task: str,
    batch: int,
    interval: float = 0.0,
) -> tuple[float, float]:
    """Measures the CPU seconds each time that the actor runs a task: its own, and the learner's.

    The actor runs it once in `interval` seconds, or at once again.
    """
    before = learner.request()["cpu"]
    answer = actor.request(measure_seconds=seconds, task=task, batch=batch, interval=interval)
    after = learner.request()["cpu"]
    return answer["cpu"] / answer["steps"], (after - before) / answer["steps"]
