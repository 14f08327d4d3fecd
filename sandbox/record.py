"""Records a shipped curve: runs a documented command and keeps what came of it.

python sandbox/record.py cartpole --seeds=1,2,3         runs each seed, one after the other
python sandbox/record.py cartpole --take=runs/FOLDER     keeps a run that is there already
python sandbox/record.py --draw                          draws all of sandbox/reference/ again

A curve is a file sandbox/reference/NAME-SEED.json: command, commit, date, machine, result, and the
return at some 200 moments, with their frames and seconds. They are measured alone: nothing else is
to run on the machine.
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

from experiments import EXPERIMENTS, REFERENCE, ROOT, command, machine, play, rows_of

_POINTS = 200


def record(name: str, seed: int, logdir: Path, *more: str) -> Path:
    """Writes the run in `logdir` as the reference of this name and seed."""
    rows = [row for row in rows_of(logdir) if "episode_return" in row]
    last = rows[-1]
    thinned = [*rows[:: max(1, len(rows) // _POINTS)], last]
    kept = {
        "name": name,
        "command": " ".join(command(name, seed, *more)),
        "seed": seed,
        "commit": _git("describe", "--always", "--dirty"),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "episode_return": last["episode_return"],
        "frames": last["frames"],
        "steps": last["steps"],
        "seconds": last["seconds"],
        "steps_per_second": last["steps"] / last["seconds"],
        "curve": [
            [row["frames"], row["seconds"], round(row["episode_return"], 3)] for row in thinned
        ],
    }
    path = REFERENCE / f"{name}-{seed}.json"
    lines = [f'"{key}": {json.dumps(value)}' for key, value in kept.items()]
    path.write_text("{" + ",\n ".join(lines).replace("], [", "],\n  [") + "}\n")
    print(f"{path.relative_to(ROOT)}: {kept['episode_return']:.2f} after {kept['frames']:,.0f}")
    return path


def draw() -> None:
    """One picture per name: its seeds against frames and against seconds."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    matplotlib.rcParams["svg.hashsalt"] = "impala_mm"  # the same curves, the same file
    matplotlib.rcParams["svg.fonttype"] = "none"
    for name in EXPERIMENTS:
        runs = [json.loads(p.read_text()) for p in sorted(REFERENCE.glob(f"{name}-*.json"))]
        if not runs:
            continue
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
        for run in runs:
            frames, seconds, returns = zip(*run["curve"], strict=True)
            axes[0].plot(frames, returns, label=f"seed {run['seed']}")
            axes[1].plot(seconds, returns)
        axes[0].set(xlabel="environment frames", ylabel="mean return, last 100 games")
        axes[1].set(xlabel="seconds")
        axes[0].legend(frameon=False)
        figure.suptitle(name)
        figure.savefig(REFERENCE / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("name", nargs="?", choices=EXPERIMENTS)
    parser.add_argument("--seeds", default="1", help="whole numbers, separated by commas")
    parser.add_argument("--take", type=Path, help="folder of a run of this name and seed")
    parser.add_argument("--draw", action="store_true", help="only draw")
    given, more = parser.parse_known_args()
    if given.name is None and not given.draw:
        parser.error(f"name one of {', '.join(EXPERIMENTS)}, or --draw")
    for seed in map(int, given.seeds.split(",")) if given.name else ():
        logdir = given.take or ROOT / "runs" / f"{given.name}-{seed}-{_git('describe', '--always')}"
        if not given.take:
            code = play(given.name, seed, logdir, *more)
            if code:
                sys.exit(f"error: it ended with code {code}; nothing is recorded")
        record(given.name, seed, logdir, *more)
    draw()


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of this file's docstring."""


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
