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
_SAMPLE_SECONDS = 2.0  # seconds between two looks
_REPORT_SECONDS = 60.0  # seconds between two lines that say how far it is
_RESTART_TIMEOUT = 60.0  # seconds that a process may take to be back
_ROLES = ("learner", "actor")


class MemorySize(NamedTuple):
    """MiB of a process."""

    all: float  # what it shares by its part
    own: float


class MemoryTrend(NamedTuple):
    """The course of a memory size over a run, in MiB."""

    start_mean: float
    end_mean: float
    per_hour: float


def measure_memory(process: int) -> MemorySize:
    """Reads the memory of a process; 0 once it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return MemorySize(0.0, 0.0)
    found = {line.split()[0]: line.split()[1] for line in text.splitlines()[1:]}
    return MemorySize(*(int(found[name]) / 1024 for name in ("Pss:", "Anonymous:")))


def memory_trend(seconds: list[float], sizes: list[float]) -> MemoryTrend:
    """Summarises sizes that were sampled at these seconds, at least 10."""
    tenth = max(len(sizes) // 10, 1)
    slope = np.polyfit(seconds[tenth:], sizes[tenth:], 1)[0] * 3600
    return MemoryTrend(
        statistics.mean(sizes[:tenth]), statistics.mean(sizes[-tenth:]), round(float(slope), 1)
    )


def measure_run_memory(argv: list[str], minutes: float) -> dict[str, list[MemoryTrend]]:
    """Measures a run with these flags; returns the trends of `all` and of `own` by role."""
    with real_run.start_run(argv) as (process, rows):
        real_run.wait_until_training(process, rows)
        began, reported, seconds = time.monotonic(), 0.0, list[float]()
        samples: dict[str, list[MemorySize]] = {role: [] for role in _ROLES}
        while time.monotonic() - began < 60 * minutes or len(seconds) < 10:
            sizes: dict[str, list[MemorySize]] = {role: [] for role in _ROLES}
            for each, threads in thread_cpu.snapshot(process.pid).items():
                if (found := measure_memory(each)).all:  # it has not ended meanwhile
                    sizes[threads.role].append(found)
            if all(sizes.values()):  # an actor that starts again is gone for a moment
                for role, several in sizes.items():
                    samples[role].append(
                        MemorySize(*map(statistics.mean, zip(*several, strict=True)))
                    )
                seconds.append(time.monotonic() - began)
            elif time.monotonic() - began > (seconds[-1] if seconds else 0.0) + _RESTART_TIMEOUT:
                raise real_run.RunFailed("it has no learner or no actor any more")
            if seconds and seconds[-1] - reported >= _REPORT_SECONDS:
                reported = seconds[-1]
                now = ", ".join(f"{role} {samples[role][-1].own:.0f} MiB" for role in _ROLES)
                print(f"  {reported / 60:.0f} of {minutes:g} minutes: {now}", file=sys.stderr)
            if process.poll() is not None:
                raise real_run.RunFailed(f"the run ended with code {process.returncode}")
            time.sleep(min(_SAMPLE_SECONDS, 6 * minutes))
    return {
        role: [
            memory_trend(seconds, [getattr(sample, name) for sample in of])
            for name in MemorySize._fields
        ]
        for role, of in samples.items()
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run (5)")
    parser.add_argument("--actors", default="1,2", help="numbers of actors (1,2)")
    parser.add_argument("--places", default="actor,learner", help="of inference (actor,learner)")
    args, rest = parser.parse_known_args()
    print("MiB of each process          all: begins     ends   own: begins     ends   per hour")
    for place in args.places.split(","):
        for actors in map(int, args.actors.split(",")):
            where = f"--learner_hosts={real_run.free_address()}"
            argv = [_PONG, f"--num_actors={actors}", f"--inference={place}", where, *rest]
            try:
                found = measure_run_memory(argv, args.minutes)
            except real_run.RunFailed as error:
                sys.exit(f"error: {error}")
            for role, (every, own) in found.items():
                what = f"{role}, {actors} actor{'s' * (actors > 1)}, inference at the {place}"
                print(f"{what}\n{every.start_mean:40.0f}{every.end_mean:9.0f}", end="")
                print(f"{own.start_mean:14.0f}{own.end_mean:9.0f}{own.per_hour:+11.1f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
