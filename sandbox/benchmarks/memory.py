"""What a run's processes take of memory, what one more actor costs, and whether it stays so.

    python sandbox/benchmarks/memory.py [--minutes=5] [--actors=1,2] [--places=actor,learner] \\
        [any flag of experiment.py]

For each number of actors and each place of inference one real run on Pong, which is looked at every
few seconds from its first update on. Memory is PSS: pages that several processes share count for
each by its part, so that sums mean something. `begins` is the mean of the first tenth, `ends` that
of the last; `per hour` is the slope of a straight line through all but the first tenth.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import runs
import stages

_PONG = "--level_name=PongNoFrameskip-v4"
_LOOK = 2.0  # seconds between two looks


class Memory(NamedTuple):
    """MiB of one role's processes, each in the mean."""

    begins: float
    ends: float
    per_hour: float


def pss(process: int) -> float:
    """MiB that a process takes now; 0 once it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
    )


def course(seconds: list[float], sizes: list[float]) -> Memory:
    """What became of a size, seen at these seconds; at least 10 looks."""
    tenth = max(len(sizes) // 10, 1)
    slope = np.polyfit(seconds[tenth:], sizes[tenth:], 1)[0] * 3600
    return Memory(
        statistics.mean(sizes[:tenth]), statistics.mean(sizes[-tenth:]), round(float(slope), 1)
    )


def run(argv: list[str], minutes: float) -> dict[str, Memory]:
    """Of a run with these flags, by role."""
    with runs.started(argv) as (process, rows):
        runs.wait_until_it_trains(process, rows)
        begin, seconds = time.monotonic(), list[float]()
        looks: dict[str, list[float]] = {"learner": [], "actor": []}
        while time.monotonic() - begin < 60 * minutes or len(seconds) < 10:
            sizes: dict[str, list[float]] = {"learner": [], "actor": []}
            for each, threads in stages.snapshot(process.pid).items():
                sizes[threads.role].append(pss(each))
            for role, found in sizes.items():
                looks[role].append(statistics.mean(found or [0.0]))
            seconds.append(time.monotonic() - begin)
            if process.poll() is not None:
                raise runs.Failed(f"the run ended with code {process.returncode}")
            time.sleep(min(_LOOK, 6 * minutes))
    return {role: course(seconds, sizes) for role, sizes in looks.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run (5)")
    parser.add_argument("--actors", default="1,2", help="numbers of actors (1,2)")
    parser.add_argument("--places", default="actor,learner", help="of inference (actor,learner)")
    given, rest = parser.parse_known_args()
    print("MiB of each process    begins     ends   per hour")
    for place in given.places.split(","):
        for actors in map(int, given.actors.split(",")):
            where = f"--learner_hosts={runs.free_address()}"
            argv = [_PONG, f"--num_actors={actors}", f"--inference={place}", where, *rest]
            try:
                found = run(argv, given.minutes)
            except runs.Failed as error:
                sys.exit(f"error: {error}")
            for role, memory in found.items():
                what = f"{role}, {actors} actor{'s' * (actors > 1)}, inference at the {place}"
                print(f"{what}\n{memory.begins:29.0f}{memory.ends:9.0f}{memory.per_hour:+11.1f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
