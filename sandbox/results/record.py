"""Recorded curves: what a run of a documented command learnt, saved for each seed.

A curve is saved as sandbox/reference/NAME-SEED.json: the command, commit, date, machine and
result, and the return at about 200 points with their frames and seconds.
"""

import json
import shlex
from pathlib import Path
from typing import Any

from impala_mm.config import flags
from impala_mm.records.run_contents import read_json_lines
from impala_mm.runtime import provenance
from sandbox.results.documented import (
    REFERENCE_FOLDER,
    ROOT,
    describe_machine,
    full_command,
    run_documented,
)
from sandbox.results.runs import read_returns

_CURVE_POINTS = 200


def run_seed(name: str, seed: int, *more: str) -> Path:
    """Run the command with this seed to its end, and return the run's folder.

    A run of the same code that was interrupted continues.
    """
    logdir = ROOT / "runs" / f"{name}-{seed}-{provenance.revision()}"
    if code := run_documented(name, seed, logdir, *more):
        flags.refuse(f"the run exited with code {code}; nothing was recorded")
    return logdir


def save_reference(name: str, logdir: Path, alone: bool, *more: str) -> None:
    """Write the run in `logdir` as the reference for its name and seed."""
    rows = read_returns(logdir)
    if not rows:
        flags.refuse(f"no game of the run in {logdir} has ended; nothing was recorded")
    start = read_json_lines(logdir / "starts.jsonl")[-1]
    seed = start["settings"]["seed"]
    last = rows[-1]
    thinned = [*rows[:: max(1, len(rows) // _CURVE_POINTS)], last]
    reference: dict[str, Any] = {
        "name": name,
        "command": shlex.join(full_command(name, seed, *more)),
        "seed": seed,
        "commit": start["revision"],
        "date": start["time"][:10],
        "machine": describe_machine(),
        "alone": alone,
        "episode_return": last["episode_return"],
        "frames": last["frames"],
        "steps": last["steps"],
        "seconds": last["seconds"],
        "steps_per_second": last["steps"] / last["seconds"],
        **_read_test(logdir),
        "curve": [
            [row["frames"], row["seconds"], round(row["episode_return"], 3)] for row in thinned
        ],
    }
    path = REFERENCE_FOLDER / f"{name}-{seed}.json"
    lines = [f'"{key}": {json.dumps(value)}' for key, value in reference.items()]
    path.write_text("{" + ",\n ".join(lines).replace("], [", "],\n  [") + "}\n")
    reached, frames = reference["episode_return"], reference["frames"]
    print(f"{path.relative_to(ROOT)}: mean return {reached:.2f} after {frames:,.0f} frames")


def _read_test(logdir: Path) -> dict[str, float]:
    """Return the result of the run's last test with the most likely actions, if it has one."""
    path = logdir / "evaluations.jsonl"
    tests = [t for t in read_json_lines(path) if t["deterministic"]] if path.exists() else []
    if not tests:
        return {}
    return {
        "deterministic_return": tests[-1]["mean"],
        "deterministic_games": len(tests[-1]["returns"]),
    }
