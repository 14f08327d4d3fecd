"""Recorded curves: a documented command is run, and its curve saved for each seed.

A curve is saved as sandbox/reference/NAME-SEED.json: the command, commit, date, machine and
result, and the return at about 200 points with their frames and seconds. What is known before the
run is written to record.json in the run's folder, so that a run that was interrupted or finished
later can also be saved.
"""

import datetime
import json
import shlex
import subprocess
from pathlib import Path

from impala_mm.config import flags
from impala_mm.records.run_contents import read_json_lines
from sandbox.results.documented import (
    REFERENCE_FOLDER,
    ROOT,
    describe_machine,
    full_command,
    run_documented,
)
from sandbox.results.pages import CURVES_PAGE, README
from sandbox.results.runs import read_returns

_CURVE_POINTS = 200
_RUN_RECORD = "record.json"  # file in a run's folder: what is known before the run starts


def run_seed(name: str, seed: int, alone: bool, *more: str) -> Path:
    """Run the command with this seed to its end, and return the run's folder."""
    commit = _run_git("describe", "--always")
    written = [f":!{path.relative_to(ROOT)}" for path in (REFERENCE_FOLDER, CURVES_PAGE, README)]
    if _run_git("status", "--porcelain", "--", ".", *written):
        commit += "-dirty"  # what this script writes is ignored
    logdir = ROOT / "runs" / f"{name}-{seed}-{commit}"
    run_record = {
        "name": name,
        "command": shlex.join(full_command(name, seed, *more)),
        "seed": seed,
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "alone": alone,
    }
    if (logdir / _RUN_RECORD).exists():
        flags.refuse(f"{logdir} already contains a run; save it by --take, or delete it")
    logdir.mkdir(parents=True)
    (logdir / _RUN_RECORD).write_text(json.dumps(run_record, indent=1) + "\n")
    if code := run_documented(name, seed, logdir, *more):
        flags.refuse(f"the run exited with code {code}; nothing was recorded")
    return logdir


def save_reference(logdir: Path) -> None:
    """Write the run in `logdir` as the reference for its name and seed."""
    if not (logdir / _RUN_RECORD).exists():
        flags.refuse(
            f"{logdir / _RUN_RECORD} does not exist; only a run that `record` started can be saved"
        )
    run_record = json.loads((logdir / _RUN_RECORD).read_text())
    rows = read_returns(logdir)
    if not rows:
        flags.refuse(f"no game of the run in {logdir} has ended; nothing was recorded")
    last = rows[-1]
    thinned = [*rows[:: max(1, len(rows) // _CURVE_POINTS)], last]
    reference = run_record | {
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
    path = REFERENCE_FOLDER / f"{run_record['name']}-{run_record['seed']}.json"
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


def _run_git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
