"""Records a shipped curve: runs a documented command and keeps what came of it.

python sandbox/record.py cartpole --seeds=1,2,3         runs each seed, one after the other
python sandbox/record.py --take=runs/FOLDER              keeps a run that this script started
python sandbox/record.py --draw                          pictures and table of all that is kept

A curve is a file sandbox/reference/NAME-SEED.json: command, commit, date, machine, result, and the
return at some 200 moments, with their frames and seconds. What is known before the run is written
to its folder as record.json, so a run that was cut off, or is read in a later sitting, can be kept
too. Curves are measured alone: nothing else is to run on the machine.
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

import plot_style
from documented_runs import EXPERIMENTS, REFERENCE, ROOT, command, machine, play, rows_of

_POINTS = 200
_PAGE = REFERENCE.parent / "curves.md"
_TABLE = "<!-- table -->", "<!-- end of table -->"
_NOTES = "record.json"  # in a run's folder: what is known before it begins


def start(name: str, seed: int, *more: str) -> Path:
    """Runs it to its end; its folder."""
    commit = _git("describe", "--always")
    if _git("status", "--porcelain", "--", ".", ":!sandbox/reference", ":!sandbox/curves.md"):
        commit += "-dirty"  # what is recorded here does not count
    logdir = ROOT / "runs" / f"{name}-{seed}-{commit}"
    notes = {
        "name": name,
        "command": " ".join(command(name, seed, *more)),
        "seed": seed,
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
    }
    if (logdir / _NOTES).exists():
        sys.exit(f"error: {logdir} holds a run, keep it with --take or delete it")
    logdir.mkdir(parents=True)
    (logdir / _NOTES).write_text(json.dumps(notes, indent=1) + "\n")
    if code := play(name, seed, logdir, *more):
        sys.exit(f"error: it ended with code {code}; nothing is recorded")
    return logdir


def keep(logdir: Path) -> None:
    """Writes the run in `logdir` as the reference of its name and seed."""
    if not (logdir / _NOTES).exists():
        sys.exit(
            f"error: {logdir / _NOTES} is not there: only runs that this script began are kept"
        )
    notes = json.loads((logdir / _NOTES).read_text())
    rows = [row for row in rows_of(logdir) if "episode_return" in row]
    if not rows:
        sys.exit(f"error: {logdir} has no game that ended; nothing is recorded")
    last = rows[-1]
    thinned = [*rows[:: max(1, len(rows) // _POINTS)], last]
    kept = notes | {
        "episode_return": last["episode_return"],
        "frames": last["frames"],
        "steps": last["steps"],
        "seconds": last["seconds"],
        "steps_per_second": last["steps"] / last["seconds"],
        "curve": [
            [row["frames"], row["seconds"], round(row["episode_return"], 3)] for row in thinned
        ],
    }
    path = REFERENCE / f"{notes['name']}-{notes['seed']}.json"
    lines = [f'"{key}": {json.dumps(value)}' for key, value in kept.items()]
    path.write_text("{" + ",\n ".join(lines).replace("], [", "],\n  [") + "}\n")
    print(f"{path.relative_to(ROOT)}: {kept['episode_return']:.2f} after {kept['frames']:,.0f}")


def draw() -> None:
    """One picture per name, its seeds against frames and against seconds; and the page's table."""
    table = ["| | command | reached | after (frames) | training |", "|---|---|---|---|---|"]
    for name in EXPERIMENTS:
        runs = [json.loads(p.read_text()) for p in sorted(REFERENCE.glob(f"{name}-*.json"))]
        if not runs:
            continue
        drawn, axes = plot_style.pyplot().subplots(
            1, 2, figsize=(9, 3), sharey=True, layout="constrained"
        )
        unit, short = plot_style.clock(max(run["seconds"] for run in runs))
        for run in runs:
            frames, seconds, returns = zip(*run["curve"], strict=True)
            axes[0].plot(frames, returns, label=f"seed {run['seed']}")
            axes[1].plot([second / unit for second in seconds], returns)
        axes[0].set(xlabel="environment frames", ylabel="mean return, last 100 games")
        axes[1].set(xlabel=f"time of training ({short})")
        for panel in axes:
            panel.xaxis.set_major_formatter(plot_style.number)
        axes[0].legend()
        drawn.suptitle(name, x=0.01, ha="left", weight="bold")
        plot_style.save(drawn, REFERENCE / f"{name}.svg")
        table += [
            f"| {name} | `{run['command']}` | {run['episode_return']:.2f} | {run['frames']:,.0f} | "
            f"{run['seconds']:,.0f} s |"
            for run in runs
        ]
    before, rest = _PAGE.read_text().split(_TABLE[0])
    after = rest.split(_TABLE[1])[1]
    _PAGE.write_text("\n".join([before + _TABLE[0], *table, _TABLE[1] + after]))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("name", nargs="?", choices=EXPERIMENTS)
    parser.add_argument("--seeds", default="1", help="whole numbers, separated by commas")
    parser.add_argument("--take", type=Path, help="folder of a run, to keep instead of a new one")
    parser.add_argument("--draw", action="store_true", help="only draw")
    given, more = parser.parse_known_args()
    if given.take:
        if given.name or more:
            parser.error("--take stands alone: the run's record.json says what it is")
        keep(given.take)
    elif given.name:
        for seed in map(int, given.seeds.split(",")):
            keep(start(given.name, seed, *more))
    elif not given.draw:
        parser.error(f"name one of {', '.join(EXPERIMENTS)}, or --take, or --draw")
    draw()


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of this file's docstring."""


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
