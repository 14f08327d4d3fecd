"""The check that a run learns as fast as the recorded curves, sandbox/reference/NAME-SEED.json.

A run must reach a quarter, half, three quarters and all of the way from the first return to the
goal within SLACK times the frames that the slowest recorded seed needed; on the same kind of
machine also within SLACK times its seconds, if nothing else ran on the machine while the curves
were recorded. Every return may take a quarter of what is allowed for the goal, since the first
games are mostly chance. A return that a recorded seed never reached is not compared.
"""

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_mm.config import flags
from impala_mm.records.run_contents import read_records
from sandbox.results.documented import (
    DOCUMENTED_RUNS,
    describe_machine,
    read_references,
    run_documented,
)
from sandbox.results.runs import read_returns

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


def verify(name: str, seed: int, of: Path | None, until: float | None, more: Sequence[str]) -> None:
    """Run the command, or take the run in a folder, and print how its curve compares.

    Exits with 0 if it is within the band, with 1 if not, and with 2 if it cannot be said.
    """
    if of and (more or not (of / "metrics.jsonl").exists()):
        flags.refuse(
            f"--of starts no run, which could have {' '.join(more)}"
            if more
            else f"{of / 'metrics.jsonl'} does not exist"
        )
    documented = DOCUMENTED_RUNS[name]
    if not of and documented.missing:
        packages = shlex.join(documented.missing.split())
        flags.refuse(
            f"{name} needs a package that is not installed; install it into a folder by `uv pip "
            f"install --target extra -c constraints.lock {packages}`, and set PYTHONPATH=extra"
        )
    recorded = read_references(name)
    curves = [one["curve"] for one in recorded]
    returns: list[float] = []
    if curves:
        returns = target_returns(curves, documented.goal) if until is None else [until]
    deadlines = list(make_deadlines(curves, returns))
    if not deadlines:
        flags.refuse(f"no recorded curve of {name} reaches this return; `record` records curves")
    alone = all(one.get("alone", True) for one in recorded)
    machine = describe_machine()
    if of and (starts := read_records(of / "starts.jsonl")):
        machine = starts[-1]["machine"]
    compare_seconds = alone and any(one["machine"].startswith(machine) for one in recorded)
    stops = []
    if until is not None:
        stops = [f"--stop_at_return={until}"]
        stops += [f"--max_seconds={deadlines[0].seconds + 1:.0f}"] if compare_seconds else []
    with tempfile.TemporaryDirectory() as folder:
        logdir = of or Path(folder)
        if not of and run_documented(name, seed, logdir, *stops, *more):
            flags.refuse("the run failed")
        rows = read_returns(logdir)
    print(f"{name}: allowed: {SLACK} times what the slowest of {len(recorded)} seeds needed")
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
