"""Check whether this machine reproduces a published learning curve.

    python sandbox/verify.py cartpole            runs the command and compares its curve
    python sandbox/verify.py cartpole --of=runs/FOLDER     compares a run that already exists
    python sandbox/verify.py pong --until=-19.5            only up to this return: takes minutes

The reference curves are sandbox/reference/NAME-*.json, one file per recorded seed. A run must reach
a quarter, half, three quarters and all of the way from the first return to the goal within SLACK
times the frames that the slowest recorded seed needed; on the same kind of machine also within
SLACK times its seconds, if nothing else ran on the machine while the curves were recorded. Every
return may take a quarter of what is allowed for the goal, since the first games are mostly chance.
A return that a recorded seed never reached is not compared, and the output says so.
Exit code 0: the run is within this band. 1: it is not, and the table shows where. 2: the check was
impossible, for example because a package is not installed.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from documented_runs import (
    DOCUMENTED_RUNS,
    describe_machine,
    read_curve,
    read_references,
    run_documented,
)

from impala_mm.records.run_contents import read_json_lines

SLACK = 1.5
# The share of the goal's frames and seconds within which every earlier return may be reached: the
# mean of a run's first games is mostly chance, and so is when it first reaches a low return.
_CHANCE = 0.25
_TARGET_FRACTIONS = (0.25, 0.5, 0.75, 1.0)
CurvePoints = list[tuple[float, float, float]]  # (frames, seconds, return)


def first_reaching(curve: CurvePoints, level: float) -> tuple[float, float] | None:
    """Return (frames, seconds) when the return first reaches `level`; None if it never does."""
    for frames, seconds, value in curve:
        if value >= level:
            return frames, seconds
    return None


class Deadline(NamedTuple):
    """A return to reach, with the latest frames and seconds at which it may be reached."""

    target_return: float
    frames: float
    seconds: float

    def is_met(self, at: tuple[float, float] | None, compare_seconds: bool) -> bool:
        """Return whether (frames, seconds) is in time; seconds count only if `compare_seconds`."""
        return (
            at is not None
            and at[0] <= self.frames
            and (not compare_seconds or at[1] <= self.seconds)
        )


def make_deadlines(references: list[CurvePoints], levels: list[float]) -> Iterator[Deadline]:
    """Yield a deadline for each of the increasing returns that every recorded seed reached."""
    reached = []
    for level in levels:
        known = [first_reaching(curve, level) for curve in references]
        if all(known):
            frames, seconds = zip(*[at for at in known if at], strict=True)
            reached.append(Deadline(level, SLACK * max(frames), SLACK * max(seconds)))
    for level, *latest in reached:
        least = [_CHANCE * last for last in reached[-1][1:]]
        yield Deadline(level, *map(max, latest, least))


def target_returns(references: list[CurvePoints], goal: float) -> list[float]:
    """Return the returns to reach on the way from the first return to the goal."""
    start = min(curve[0][2] for curve in references)
    return [goal - (1 - part) * (goal - start) for part in _TARGET_FRACTIONS]  # the last is exact


def check_deadlines(run: CurvePoints, deadlines: list[Deadline], compare_seconds: bool) -> bool:
    """Print the table, and return whether every deadline was met."""
    print(f"{'return':>10} {'frames':>14} {'at most':>14} {'seconds':>9} {'at most':>9}")
    all_met = True
    for deadline in deadlines:
        reached = first_reaching(run, deadline.target_return)
        frames, seconds = [f"{x:,.0f}" for x in reached] if reached else ["never", "never"]
        outside = "" if deadline.is_met(reached, compare_seconds) else "  OUTSIDE"
        all_met = all_met and not outside
        print(
            f"{deadline.target_return:10.2f} {frames:>14} {deadline.frames:14,.0f} {seconds:>9}"
            f" {deadline.seconds:9,.0f}{outside}"
        )
    return all_met


def main() -> None:
    """Parse the command line, run the command, compare its curve and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=DOCUMENTED_RUNS)
    parser.add_argument("--seed", type=int, default=1, help="seed of the run (1)")
    parser.add_argument(
        "--of", type=Path, help="folder of an existing run to compare; starts no run"
    )
    parser.add_argument(
        "--until", type=float, help="stop at this mean return, and check only this one"
    )
    args, more = parser.parse_known_args()
    if args.of and (more or not (args.of / "metrics.jsonl").exists()):
        parser.error(more[0] if more else f"{args.of / 'metrics.jsonl'} does not exist")
    documented = DOCUMENTED_RUNS[args.name]
    if not args.of and not documented.is_possible():
        print(
            f"error: {args.name} needs a package that is not installed; install it into a folder "
            f"by `uv pip install --target extra -c constraints.lock '{documented.needs}'`, and "
            f"set PYTHONPATH=extra"
        )
        sys.exit(2)
    recorded = read_references(args.name)
    curves = [one["curve"] for one in recorded]
    goal, until = documented.goal, args.until
    returns: list[float] = []
    if curves:
        returns = target_returns(curves, goal) if until is None else [until]
    deadlines = list(make_deadlines(curves, returns))
    if not deadlines:
        print(
            f"error: no recorded curve of {args.name} reaches this return; sandbox/record.py "
            f"records curves"
        )
        sys.exit(2)
    alone = all(one.get("alone", True) for one in recorded)
    machine = describe_machine()
    if args.of and (starts := args.of / "starts.jsonl").exists():
        machine = read_json_lines(starts)[-1]["machine"]
    compare_seconds = alone and any(one["machine"].startswith(machine) for one in recorded)
    if until is not None:
        more.append(f"--stop_at_return={until}")
        more += [f"--max_seconds={deadlines[0].seconds + 1:.0f}"] if compare_seconds else []
    with tempfile.TemporaryDirectory() as folder:
        logdir = args.of or Path(folder)
        if not args.of and run_documented(args.name, args.seed, logdir, *more):
            print("error: the run failed")
            sys.exit(2)
        rows = read_curve(logdir)
    print(f"{args.name}: allowed: {SLACK} times what the slowest of {len(recorded)} seeds needed")
    run = [(row["frames"], row["seconds"], row["episode_return"]) for row in rows]
    all_met = check_deadlines(run, deadlines, compare_seconds)
    for level in returns[len(deadlines) :]:  # the highest ones
        never = sum(first_reaching(curve, level) is None for curve in curves)
        print(f"{level:10.2f} is not compared: {never} of {len(curves)} seeds never reached it")
    if not alone:
        print("seconds are not compared: the recorded runs shared their machine")
    elif not compare_seconds:
        where = recorded[0]["machine"]
        print(f"seconds are not compared: this is {machine}, the reference {where}")
    print("within the band" if all_met else "outside the band")
    sys.exit(0 if all_met else 1)


if __name__ == "__main__":
    main()
