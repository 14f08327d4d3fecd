"""A measuring process (`worker.py`), seen from who asks it.

That is `components.py`, `wire.py`, `kind.py` and `compression.py`.
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

_PARTS = Path(__file__).resolve().parent / "worker.py"


class Process:
    """One of them."""

    def __init__(self, config: Config, threads: int, gpus: bool = True):
        """It sees the GPUs that this process sees, if any, or none; 0 threads: as a learner has."""
        given = [
            f"--{f.name}={getattr(config, f.name)}"
            for f in dataclasses.fields(config)
            if getattr(config, f.name) != f.default
        ]
        self._process = subprocess.Popen(
            [sys.executable, str(_PARTS), str(threads), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            start_new_session=True,  # Ctrl-C is for who measures
        )

    def ask(self, **what: Any) -> dict[str, Any]:
        """Its answer."""
        self.tell(**what)
        return self.hear()

    def tell(self, **what: Any) -> None:
        """Asks, and waits for no answer yet."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # `hear` says so
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The answer to what it was told."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"error: a measuring process ended with code {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.wait()


def together(processes: list[Process], **what: Any) -> list[dict[str, Any]]:
    """What they answer who do the same at the same time."""
    for process in processes:
        process.tell(**what)
    return [process.hear() for process in processes]


def crowded(processes: list[Process], seconds: float, part: str, batch: int) -> float:
    """Core-seconds of a step where all of them do the same; the part is ready."""
    return of_a_step(together(processes, go=seconds, part=part, batch=batch))


def of_a_step(answers: list[dict[str, Any]]) -> float:
    """Core-seconds, from what they say who measured a part."""
    return sum(a["cpu"] for a in answers) / sum(a["steps"] for a in answers)


def both_ends(
    learner: Process, actor: Process, seconds: float, part: str, batch: int, every: float = 0.0
) -> tuple[float, float]:
    """CPU seconds each time that the actor does it: its own, and the learner's that answers.

    It does it once in `every` seconds, or at once again.
    """
    before = learner.ask()["cpu"]
    answer = actor.ask(go=seconds, part=part, batch=batch, every=every)
    after = learner.ask()["cpu"]
    return answer["cpu"] / answer["steps"], (after - before) / answer["steps"]
