"""The client side of a measuring process (`worker.py`).

`components.py`, `wire_costs.py` and `host_costs.py` use it.
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
        """Start a process that sees all GPUs of this process, or none if `gpus` is false.

        With 0 threads it has a learner's threads.
        """
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(threads), *to_flags(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            start_new_session=True,  # Ctrl-C reaches only the measuring script
        )

    def request(self, **message: Any) -> dict[str, Any]:
        """Send a message, and return its answer."""
        self.send(**message)
        return self.receive()

    def send(self, **message: Any) -> None:
        """Send a message without waiting for its answer."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # `receive` reports that the process exited
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for the answer to the last message."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"error: a measuring process exited with code {self._process.wait()}")
        return json.loads(line)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


def to_flags(config: Config) -> list[str]:
    """Return the command-line flags that make this config."""
    values = {f.name: (getattr(config, f.name), f.default) for f in dataclasses.fields(config)}
    return [f"--{name}={value}" for name, (value, default) in values.items() if value != default]


def request_all(processes: list[WorkerProcess], **message: Any) -> list[dict[str, Any]]:
    """Send the same message to all processes at once, and return their answers."""
    for process in processes:
        process.send(**message)
    return [process.receive() for process in processes]


def measure_concurrently(
    processes: list[WorkerProcess], seconds: float, task: str, batch: int
) -> float:
    """Measure the core-seconds of a step while all processes run the same prepared task."""
    return core_seconds_per_step(
        request_all(processes, measure_seconds=seconds, task=task, batch=batch)
    )


def core_seconds_per_step(answers: list[dict[str, Any]]) -> float:
    """Return the core-seconds per step from the answers of processes that measured a task."""
    return sum(a["cpu"] for a in answers) / sum(a["steps"] for a in answers)


def measure_both_ends(
    learner: WorkerProcess,
    actor: WorkerProcess,
    seconds: float,
    task: str,
    batch: int,
    interval: float = 0.0,
) -> tuple[float, float]:
    """Measure the CPU seconds of actor and learner each time that the actor runs a task.

    The actor runs the task every `interval` seconds, or without a pause if it is 0.
    """
    before = learner.request()["cpu"]
    answer = actor.request(measure_seconds=seconds, task=task, batch=batch, interval=interval)
    after = learner.request()["cpu"]
    return answer["cpu"] / answer["steps"], (after - before) / answer["steps"]
