"""Does it learn here what it learnt for us? Runs a documented command against its shipped curves.

    python sandbox/verify.py cartpole            runs it, and says whether it lies in the band
    python sandbox/verify.py cartpole --of=runs/FOLDER     judges a run that is there already
    python sandbox/verify.py pong --until=-19.5            only so far: minutes, not an hour

The band comes from sandbox/reference/NAME-*.json, one file per recorded seed. A quarter, half,
three quarters and all of the way from the first return to the goal must each be reached within
SLACK times the frames that the slowest recorded seed took; on the same class of machine, of its
seconds, too. Exit code 0: it lies within. 1: it does not, and the table says where. 2: it cannot be
told.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from documented_runs import EXPERIMENTS, REFERENCE, machine, play, rows_of

SLACK = 1.5
_WAY = (0.25, 0.5, 0.75, 1.0)
Curve = list[tuple[float, float, float]]  # (frames, seconds, return)


def crossing(curve: Curve, level: float) -> tuple[float, float] | None:
    """(frames, seconds) at which the return first reaches `level`; None if it never does."""
    for frames, seconds, value in curve:
        if value >= level:
            return frames, seconds
    return None


class Mark(NamedTuple):
    """A return to reach, and how late that may be."""

    level: float
    frames: float
    seconds: float

    def met(self, at: tuple[float, float] | None, clock: bool) -> bool:
        """Whether (frames, seconds) is in time; seconds count where clocks can be compared."""
        return at is not None and at[0] <= self.frames and (not clock or at[1] <= self.seconds)


def band(references: list[Curve], levels: list[float]) -> Iterator[Mark]:
    """One mark for each level that every recorded seed reached."""
    for level in levels:
        known = [crossing(curve, level) for curve in references]
        if all(known):
            frames, seconds = zip(*[at for at in known if at], strict=True)
            yield Mark(level, SLACK * max(frames), SLACK * max(seconds))


def way(references: list[Curve], goal: float) -> list[float]:
    """The returns at the parts of the way to the goal."""
    start = min(curve[0][2] for curve in references)
    return [start + part * (goal - start) for part in _WAY]


def judge(run: Curve, marks: list[Mark], clock: bool) -> bool:
    """Prints the table; whether every mark was met."""
    print(f"{'return':>10} {'frames':>14} {'at most':>14} {'seconds':>9} {'at most':>9}")
    fine = True
    for mark in marks:
        at = crossing(run, mark.level)
        frames, seconds = [f"{x:,.0f}" for x in at] if at else ["never", "never"]
        outside = "" if mark.met(at, clock) else "  OUTSIDE"
        fine = fine and not outside
        print(
            f"{mark.level:10.2f} {frames:>14} {mark.frames:14,.0f} {seconds:>9}"
            f" {mark.seconds:9,.0f}{outside}"
        )
    return fine


def main() -> None:
    """Runs, judges and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--seed", type=int, default=1, help="whole number")
    parser.add_argument("--of", type=Path, help="folder of a run to judge instead of a new one")
    parser.add_argument("--until", type=float, help="return at which it ends; judges this alone")
    given, more = parser.parse_known_args()
    if given.of and (more or not (given.of / "metrics.jsonl").exists()):
        parser.error(more[0] if more else f"{given.of / 'metrics.jsonl'} is not there")
    recorded = [json.loads(p.read_text()) for p in sorted(REFERENCE.glob(f"{given.name}-*.json"))]
    curves = [one["curve"] for one in recorded]
    goal, until = EXPERIMENTS[given.name].goal, given.until
    marks = list(band(curves, way(curves, goal) if until is None else [until])) if curves else []
    if not marks:
        print(f"error: no curve of {given.name} is recorded that far (sandbox/record.py does)")
        sys.exit(2)
    clock = machine() in {one["machine"] for one in recorded}
    if until is not None:
        more.append(f"--stop_at_return={until}")
        more += [f"--max_seconds={marks[0].seconds + 1:.0f}"] if clock else []
    with tempfile.TemporaryDirectory() as folder:
        logdir = given.of or Path(folder)
        if not given.of and play(given.name, given.seed, logdir, *more):
            print("error: the run failed")
            sys.exit(2)
        rows = [row for row in rows_of(logdir) if "episode_return" in row]
    print(f"{given.name}: at most {SLACK} times what the slowest of {len(recorded)} seeds took")
    run = [(row["frames"], row["seconds"], row["episode_return"]) for row in rows]
    fine = judge(run, marks, clock)
    if not clock:
        print(f"seconds are not judged: this is {machine()}, recorded: {recorded[0]['machine']}")
    print("within the band" if fine else "outside the band")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
