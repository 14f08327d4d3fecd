"""The commands whose learning curves this project publishes; `record.py` and `verify.py` run them.

Each command is `python experiment.py` with the flags below and a seed. It depends on no other
configuration.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from impala_mm.records.json_lines import read_json_lines
from impala_mm.runtime import provenance

ROOT = Path(__file__).resolve().parent.parent
REFERENCE_FOLDER = Path(__file__).resolve().parent / "reference"


class DocumentedRun(NamedTuple):
    """A documented command and the mean return that it must reach."""

    flags: list[str]
    goal: float  # mean unclipped return of the last 100 games


DOCUMENTED_RUNS = {
    # catch and CartPole-v1 stop at their own reward threshold.
    "catch": DocumentedRun(["--level_name=catch"], 0.9),
    "cartpole": DocumentedRun(["--level_name=CartPole-v1"], 475),
    # The agent must remember the first observation until the last step.
    "memory": DocumentedRun(
        ["--level_name=memory", "--agent_name=MLPLSTMAgent", "--stop_at_return=0.96"], 0.95
    ),
    # The defaults; the run ends at a mean return of 20 (the maximum is 21) or after an hour.
    "pong": DocumentedRun(
        ["--level_name=PongNoFrameskip-v4", "--stop_at_return=20", "--max_seconds=3600"], 18
    ),
    "breakout": DocumentedRun(  # the predecessor's flags, for 9 million steps
        [
            "--level_name=BreakoutNoFrameskip-v4",
            "--batch_size=32",
            "--unroll_length=20",
            "--entropy_cost=0.01",
            "--learning_rate=0.0006",
            "--reward_clipping=abs_one",
            "--gradients_clipping=40",
            "--total_environment_frames=36000000",
        ],
        30,
    ),
}


def command_line(name: str, seed: int, *more: str) -> list[str]:
    """Return the command line as pages show it and recorded files contain it."""
    flags = [*DOCUMENTED_RUNS[name].flags, f"--seed={seed}", *more]
    return ["python", "experiment.py", *flags]


def run_documented(name: str, seed: int, logdir: Path, *more: str) -> int:
    """Run the command, with its output on this terminal, and return its exit code."""
    arguments = command_line(name, seed, *more, f"--logdir={logdir}")
    print(f"$ {' '.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, *arguments[1:]], cwd=ROOT, check=False).returncode


def read_metrics(logdir: Path) -> list[dict]:
    """Read the rows of metrics.jsonl."""
    return read_json_lines(logdir / "metrics.jsonl")


def describe_machine() -> str:
    """Describe this machine in the words that recorded curves contain."""
    return f"{provenance.machine()}, no GPU"
