"""Record a reference curve: run a documented command and save its learning curve.

python sandbox/record.py cartpole --seeds=1,2,3         runs the seeds one after another
python sandbox/record.py --take=runs/FOLDER              saves a run that this script started
python sandbox/record.py --draw                          only redraws all figures and the tables

A curve is saved as sandbox/reference/NAME-SEED.json: the command, commit, date, machine and
result, and the return at about 200 points with their frames and seconds. The script writes what
is known before the run to record.json in the run's folder, so that --take can also save a run
that was interrupted or finished later. Run nothing else on the machine while recording; if you
must, give --shared, which is recorded: verify.py then compares frames but not seconds.
"""

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from pathlib import Path

import plot_style
import published
from documented_runs import (
    DOCUMENTED_RUNS,
    REFERENCE_FOLDER,
    ROOT,
    describe_machine,
    full_command,
    read_curve,
    read_references,
    run_documented,
)

from impala_mm.records.run_contents import read_json_lines

_CURVE_POINTS = 200
_PAGE = REFERENCE_FOLDER.parent / "curves.md"
_README = ROOT / "README.md"
_TABLE_MARKS = "<!-- table -->", "<!-- end of table -->"
_COMMAND_MARKS = "<!-- commands -->", "<!-- end of commands -->"
_PUBLISHED_MARKS = "<!-- published -->", "<!-- end of published -->"
_LINE = 78  # the longest line of a command, if its words allow
_RUN_RECORD = "record.json"  # file in a run's folder: what is known before the run starts


def run_seed(name: str, seed: int, alone: bool, *more: str) -> Path:
    """Run the command with this seed to its end, and return the run's folder."""
    commit = _run_git("describe", "--always")
    written = [f":!{path.relative_to(ROOT)}" for path in (REFERENCE_FOLDER, _PAGE, _README)]
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
        sys.exit(f"error: {logdir} already contains a run; save it with --take, or delete it")
    logdir.mkdir(parents=True)
    (logdir / _RUN_RECORD).write_text(json.dumps(run_record, indent=1) + "\n")
    if code := run_documented(name, seed, logdir, *more):
        sys.exit(f"error: the run exited with code {code}; nothing was recorded")
    return logdir


def save_reference(logdir: Path) -> None:
    """Write the run in `logdir` as the reference for its name and seed."""
    if not (logdir / _RUN_RECORD).exists():
        sys.exit(
            f"error: {logdir / _RUN_RECORD} does not exist; only a run that this script started "
            f"can be saved"
        )
    run_record = json.loads((logdir / _RUN_RECORD).read_text())
    rows = read_curve(logdir)
    if not rows:
        sys.exit(f"error: no game of the run in {logdir} has ended; nothing was recorded")
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


def draw_references() -> None:
    """Draw a figure per name, over frames and over time, and write the tables of both pages."""
    table = ["| task | return (random) | frames | time |", "|---|---|---|---|"]
    commands = ["```sh"]
    beside_published = {}
    for name, documented in DOCUMENTED_RUNS.items():
        runs = read_references(name)
        if not runs:
            continue
        if documented.published:
            beside_published[name] = runs
            continue
        figure, axes = plot_style.pyplot().subplots(
            1, 2, figsize=(9, 3), sharey=True, layout="constrained"
        )
        unit, short = plot_style.time_unit(max(run["seconds"] for run in runs))
        for number, run in enumerate(read_references(documented.beside or "none")):
            frames, _, returns = zip(*run["curve"], strict=True)
            label = "" if number else documented.beside
            axes[0].plot(frames, returns, color="#999999", label=label, zorder=1)
        for run in runs:
            frames, seconds, returns = zip(*run["curve"], strict=True)
            axes[0].plot(frames, returns, label=f"seed {run['seed']}")
            axes[1].plot([second / unit for second in seconds], returns)
        axes[0].set(xlabel="environment frames", ylabel="mean return of the last 100 games")
        axes[1].set(xlabel=f"training time ({short})")
        for panel in axes:
            plot_style.label_axis(panel.xaxis)
        axes[0].legend()
        figure.suptitle(name, x=0.01, ha="left", weight="bold")
        plot_style.save_figure(figure, REFERENCE_FOLDER / f"{name}.svg")
        run = sorted(runs, key=lambda run: run["frames"])[len(runs) // 2]
        table.append(
            f"| {name} | {run['episode_return']:.2f} ({documented.random:g}) "
            f"| {run['frames']:,.0f} "
            f"| {run['seconds']:,.0f} s{'' if run.get('alone', True) else '*'} |"
        )
        commands.append(f"# {name}: {documented.spaces}")
        commands += _broken(shlex.split(run["command"]))
    _replace_table(_PAGE, _TABLE_MARKS, table)
    _replace_table(_PAGE, _COMMAND_MARKS, [*commands, "```"])
    _replace_table(_PAGE, _PUBLISHED_MARKS, published.seeds_table(beside_published))
    _replace_table(_README, _PUBLISHED_MARKS, published.table(beside_published))
    if beside_published:
        published.draw(beside_published, REFERENCE_FOLDER / "published.svg")


def _broken(words: list[str]) -> list[str]:
    """Return the lines of a command, broken between its words."""
    lines = [" ".join(words[:2])]
    for word in map(shlex.quote, words[2:]):
        if len(lines[-1]) + len(word) + 3 <= _LINE:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {word}")
    return lines


def _replace_table(page: Path, marks: tuple[str, str], table: list[str]) -> None:
    before, rest = page.read_text().split(marks[0])
    after = rest.split(marks[1])[1]
    page.write_text("\n".join([before + marks[0], *table, marks[1] + after]))


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


def main() -> None:
    """Parse the command line, record the runs and redraw the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=DOCUMENTED_RUNS)
    parser.add_argument("--seeds", default="1", help="seeds, separated by commas (1)")
    parser.add_argument("--take", type=Path, help="folder of a finished run to save; starts no run")
    parser.add_argument(
        "--shared", action="store_true", help="other programs run on the machine, too"
    )
    parser.add_argument("--draw", action="store_true", help="only redraw the figures and the table")
    args, more = parser.parse_known_args()
    if args.take:
        if args.name or more:
            parser.error("--take allows no other arguments: the run's record.json contains them")
        save_reference(args.take)
    elif args.name:
        for seed in map(int, args.seeds.split(",")):
            save_reference(run_seed(args.name, seed, not args.shared, *more))
    elif not args.draw:
        parser.error(f"give one of {', '.join(DOCUMENTED_RUNS)}, or --take, or --draw")
    draw_references()


def _run_git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
