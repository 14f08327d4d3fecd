"""The client side of a measuring process (`worker.py`).

`components.py` uses it, and `host_costs.py` its flags.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from impala_mm.config import flags
from impala_mm.config.settings import Config

_WORKER = Path(__file__).resolve().parent / "worker.py"


class WorkerProcess:
    """A measuring process."""

    def __init__(self, config: Config, threads: int):
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(threads), *to_flags(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
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
    names = [f.name for f in dataclasses.fields(config)]
    return flags.arguments(config, flags.changed(type(config)(), config, names))


def request_all(processes: list[WorkerProcess], **message: Any) -> list[dict[str, Any]]:
    """Send the same message to all processes at once, and return their answers."""
    for process in processes:
        process.send(**message)
    return [process.receive() for process in processes]


def measure_concurrently(
    processes: list[WorkerProcess], seconds: float, task: str, batch: int
) -> float:
    """Measure the core-seconds of a step while all processes run the same prepared task."""
    answers = request_all(processes, measure_seconds=seconds, task=task, batch=batch)
    return sum(a["cpu"] for a in answers) / sum(a["steps"] for a in answers)


def measure_both_ends(
    learner: WorkerProcess, actor: WorkerProcess, seconds: float, task: str, batch: int
) -> tuple[float, float]:
    """Measure the CPU seconds of actor and learner each time that the actor runs a task."""
    before = learner.request()["cpu"]
    answer = actor.request(measure_seconds=seconds, task=task, batch=batch)
    after = learner.request()["cpu"]
    return answer["cpu"] / answer["steps"], (after - before) / answer["steps"]
