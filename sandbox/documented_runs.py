"""The commands whose curves this project ships, by name: what `record.py` and `verify.py` run.

Each is `python experiment.py` with these flags and a seed; nothing else is set anywhere.
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
    """A documented command and what it is to reach."""

    flags: list[str]
    goal: float  # mean raw return of the last 100 games
    about: str


DOCUMENTED_RUNS = {
    "catch": DocumentedRun(["--level_name=catch"], 0.9, "ends at 0.9, the level's own threshold"),
    "cartpole": DocumentedRun(
        ["--level_name=CartPole-v1"], 475, "ends at 475, the level's own threshold"
    ),
    "memory": DocumentedRun(
        ["--level_name=memory", "--agent_name=MLPLSTMAgent", "--stop_at_return=0.96"],
        0.95,
        "what the first entry shows must be known at the last",
    ),
    "pong": DocumentedRun(
        ["--level_name=PongNoFrameskip-v4", "--stop_at_return=20", "--max_seconds=3600"],
        18,
        "all defaults; ends at 20 of 21, or after an hour",
    ),
    "breakout": DocumentedRun(
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
        "the predecessor's flags, for 9 million steps",
    ),
}


def command_line(name: str, seed: int, *more: str) -> list[str]:
    """Returns the command line, as it is printed in pages and recorded in files."""
    flags = [*DOCUMENTED_RUNS[name].flags, f"--seed={seed}", *more]
    return ["python", "experiment.py", *flags]


def run_documented(name: str, seed: int, logdir: Path, *more: str) -> int:
    """Runs it, its output to this terminal, and returns the exit code."""
    arguments = command_line(name, seed, *more, f"--logdir={logdir}")
    print(f"$ {' '.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, *arguments[1:]], cwd=ROOT, check=False).returncode


def read_metrics(logdir: Path) -> list[dict]:
    """Reads the rows of metrics.jsonl."""
    return read_json_lines(logdir / "metrics.jsonl")


def describe_machine() -> str:
    """Describes the machine that a run is made on."""
    return f"{provenance.machine()}, no GPU"
