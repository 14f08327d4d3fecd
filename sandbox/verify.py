"""Does it learn here what it learnt for us? Runs a documented command against its shipped curves.

    python sandbox/verify.py cartpole            runs it, and says whether it lies in the band
    python sandbox/verify.py cartpole --of=runs/FOLDER     judges a run that is there already

The band comes from sandbox/reference/NAME-*.json, one file per recorded seed. A quarter, half,
three quarters and all of the way from the first return to the goal must each be reached within
SLACK times the frames that the slowest recorded seed took; on the same class of machine, of its
seconds, too. Exit code 0: it lies within. 1: it does not, and the table says where. 2: nothing is
recorded.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from experiments import EXPERIMENTS, REFERENCE, machine, play, rows_of

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
    """A part of the way: what it took here, and what it may take; None: never got there."""

    level: float  # of the return
    frames: float | None
    most_frames: float
    seconds: float | None
    most_seconds: float

    def within(self, clock: bool) -> bool:
        """Whether it was reached in time; by the clock, too, where that can be compared."""
        if self.frames is None or self.seconds is None:
            return False
        return self.frames <= self.most_frames and (not clock or self.seconds <= self.most_seconds)


def marks(run: Curve, references: list[Curve], goal: float) -> Iterator[Mark]:
    """Those that every recorded seed passed."""
    start = min(curve[0][2] for curve in references)
    for part in _WAY:
        level = start + part * (goal - start)
        known = [crossing(curve, level) for curve in references]
        if all(known):
            frames, seconds = zip(*[at for at in known if at], strict=True)
            most = SLACK * max(frames), SLACK * max(seconds)
            mine = crossing(run, level) or (None, None)
            yield Mark(level, mine[0], most[0], mine[1], most[1])


def main() -> None:
    """Runs, judges and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--seed", type=int, default=1, help="whole number")
    parser.add_argument("--of", type=Path, help="folder of a run to judge instead of a new one")
    given, more = parser.parse_known_args()
    recorded = [json.loads(p.read_text()) for p in sorted(REFERENCE.glob(f"{given.name}-*.json"))]
    if not recorded:
        print(f"error: no curve of {given.name} is recorded yet (sandbox/record.py does)")
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        logdir = given.of or Path(folder)
        if not given.of and play(given.name, given.seed, logdir, *more):
            sys.exit("error: the run failed")
        rows = [row for row in rows_of(logdir) if "episode_return" in row]
    run = [(row["frames"], row["seconds"], row["episode_return"]) for row in rows]
    clock = machine() in {one["machine"] for one in recorded}
    print(f"{given.name}: at most {SLACK} times what the slowest of {len(recorded)} seeds took")
    print(f"{'return':>10} {'frames':>14} {'at most':>14} {'seconds':>9} {'at most':>9}")
    fine = True
    goal = EXPERIMENTS[given.name].goal
    for mark in marks(run, [one["curve"] for one in recorded], goal):
        here = [f"{'never' if x is None else format(x, ',.0f')}" for x in mark]
        outside = "" if mark.within(clock) else "  OUTSIDE"
        fine = fine and not outside
        print(f"{mark.level:10.2f} {here[1]:>14} {here[2]:>14} {here[3]:>9} {here[4]:>9}{outside}")
    if not clock:
        print(f"seconds are not judged: this is {machine()}, recorded: {recorded[0]['machine']}")
    print("within the band" if fine else "outside the band")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
