"""What a run's processes take of memory, what one more actor costs, and whether it stays so.

    python sandbox/benchmarks/memory.py [--minutes=5] [--actors=1,2] [--places=actor,learner] \\
        [any flag of experiment.py]

For each number of actors and each place of inference one real run on Pong, which is looked at every
few seconds from its first update on. `all` is PSS: pages that several processes share count for
each by its part, so that sums mean something; it changes with whatever else shares them on this
machine. `own` is what a process has for itself and never shares. `begins` is the mean of the first
tenth, `ends` that of the last; `per hour` is the slope of a straight line through all but the first
tenth.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import real_run
import thread_cpu

_PONG = "--level_name=PongNoFrameskip-v4"
_LOOK = 2.0  # seconds between two looks
_TOLD = 60.0  # seconds between two lines that say how far it is
_GONE = 60.0  # seconds that a process may take to be back
_ROLES = ("learner", "actor")


class Size(NamedTuple):
    """MiB of a process."""

    all: float  # what it shares by its part
    own: float


class Course(NamedTuple):
    """What became of a size, in MiB."""

    begins: float
    ends: float
    per_hour: float


def size(process: int) -> Size:
    """Of a process now; 0 once it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return Size(0.0, 0.0)
    found = {line.split()[0]: line.split()[1] for line in text.splitlines()[1:]}
    return Size(*(int(found[name]) / 1024 for name in ("Pss:", "Anonymous:")))


def course(seconds: list[float], sizes: list[float]) -> Course:
    """Of a size that was seen at these seconds; at least 10 looks."""
    tenth = max(len(sizes) // 10, 1)
    slope = np.polyfit(seconds[tenth:], sizes[tenth:], 1)[0] * 3600
    return Course(
        statistics.mean(sizes[:tenth]), statistics.mean(sizes[-tenth:]), round(float(slope), 1)
    )


def run(argv: list[str], minutes: float) -> dict[str, list[Course]]:
    """Of a run with these flags, by role: of all, and of its own."""
    with real_run.started(argv) as (process, rows):
        real_run.wait_until_it_trains(process, rows)
        begin, told, seconds = time.monotonic(), 0.0, list[float]()
        looks: dict[str, list[Size]] = {role: [] for role in _ROLES}
        while time.monotonic() - begin < 60 * minutes or len(seconds) < 10:
            sizes: dict[str, list[Size]] = {role: [] for role in _ROLES}
            for each, threads in thread_cpu.snapshot(process.pid).items():
                if (found := size(each)).all:  # it has not ended meanwhile
                    sizes[threads.role].append(found)
            if all(sizes.values()):  # an actor that starts again is gone for a moment
                for role, several in sizes.items():
                    looks[role].append(Size(*map(statistics.mean, zip(*several, strict=True))))
                seconds.append(time.monotonic() - begin)
            elif time.monotonic() - begin > (seconds[-1] if seconds else 0.0) + _GONE:
                raise real_run.Failed("it has no learner or no actor any more")
            if seconds and seconds[-1] - told >= _TOLD:
                told = seconds[-1]
                now = ", ".join(f"{role} {looks[role][-1].own:.0f} MiB" for role in _ROLES)
                print(f"  {told / 60:.0f} of {minutes:g} minutes: {now}", file=sys.stderr)
            if process.poll() is not None:
                raise real_run.Failed(f"the run ended with code {process.returncode}")
            time.sleep(min(_LOOK, 6 * minutes))
    return {
        role: [course(seconds, [getattr(look, name) for look in of]) for name in Size._fields]
        for role, of in looks.items()
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run (5)")
    parser.add_argument("--actors", default="1,2", help="numbers of actors (1,2)")
    parser.add_argument("--places", default="actor,learner", help="of inference (actor,learner)")
    given, rest = parser.parse_known_args()
    print("MiB of each process          all: begins     ends   own: begins     ends   per hour")
    for place in given.places.split(","):
        for actors in map(int, given.actors.split(",")):
            where = f"--learner_hosts={real_run.free_address()}"
            argv = [_PONG, f"--num_actors={actors}", f"--inference={place}", where, *rest]
            try:
                found = run(argv, given.minutes)
            except real_run.Failed as error:
                sys.exit(f"error: {error}")
            for role, (every, own) in found.items():
                what = f"{role}, {actors} actor{'s' * (actors > 1)}, inference at the {place}"
                print(f"{what}\n{every.begins:40.0f}{every.ends:9.0f}", end="")
                print(f"{own.begins:14.0f}{own.ends:9.0f}{own.per_hour:+11.1f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
