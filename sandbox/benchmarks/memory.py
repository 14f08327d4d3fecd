r"""The memory of a run's processes, the memory of one more actor, and its growth over time.

    python sandbox/benchmarks/memory.py [--minutes=5] [--actors=1,2] [--places=actor,learner] \\
        [any flag of experiment.py]

Each number of actors and each place of inference gets one real run on Pong, whose memory is sampled
every few seconds from its first update on. `all` is the PSS: each process counts its share of the
pages that several processes share, so that sums are meaningful; it depends on which other
processes of this machine share these pages. `own` is the memory that belongs to the process alone.
`start` is the mean of the first tenth of the samples, `end` that of the last; `per hour` is the
slope of a straight line through all but the first tenth.
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
_SAMPLE_SECONDS = 2.0  # seconds between two samples
_REPORT_SECONDS = 60.0  # seconds between two progress lines
_RESTART_TIMEOUT = 60.0  # seconds that the restart of a process may take
_ROLES = ("learner", "actor")


class MemorySize(NamedTuple):
    """The memory of a process in MiB."""

    all: float  # with its part of shared pages
    own: float  # without shared pages


class MemoryTrend(NamedTuple):
    """The course of a memory size over a run, in MiB."""

    start_mean: float
    end_mean: float
    per_hour: float


def measure_memory(process: int) -> MemorySize:
    """Read the memory of a process; return zeros if it has exited."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return MemorySize(0.0, 0.0)
    found = {line.split()[0]: line.split()[1] for line in text.splitlines()[1:]}
    return MemorySize(*(int(found[name]) / 1024 for name in ("Pss:", "Anonymous:")))


def memory_trend(seconds: list[float], sizes: list[float]) -> MemoryTrend:
    """Summarise at least 10 sizes that were sampled at these seconds."""
    tenth = max(len(sizes) // 10, 1)
    slope = np.polyfit(seconds[tenth:], sizes[tenth:], 1)[0] * 3600
    return MemoryTrend(
        statistics.mean(sizes[:tenth]), statistics.mean(sizes[-tenth:]), round(float(slope), 1)
    )


def measure_run_memory(argv: list[str], minutes: float) -> dict[str, list[MemoryTrend]]:
    """Run with these flags, and return the trends of `all` and `own` by role."""
    with real_run.start_run(argv) as (process, rows):
        real_run.wait_until_training(process, rows)
        began, reported, seconds = time.monotonic(), 0.0, list[float]()
        samples: dict[str, list[MemorySize]] = {role: [] for role in _ROLES}
        while time.monotonic() - began < 60 * minutes or len(seconds) < 10:
            sizes: dict[str, list[MemorySize]] = {role: [] for role in _ROLES}
            for each, threads in thread_cpu.snapshot(process.pid).items():
                found = measure_memory(each)
                if found.all and threads.role in sizes:  # it has not exited since the snapshot
                    sizes[threads.role].append(found)
            # All processes but actors count as the learner's: the largest of them trains.
            sizes["learner"] = sorted(sizes["learner"], key=lambda size: size.own)[-1:]
            if all(sizes.values()):  # an actor that restarts is missing for a moment
                for role, several in sizes.items():
                    samples[role].append(
                        MemorySize(*map(statistics.mean, zip(*several, strict=True)))
                    )
                seconds.append(time.monotonic() - began)
            elif time.monotonic() - began > (seconds[-1] if seconds else 0.0) + _RESTART_TIMEOUT:
                raise real_run.RunFailed("the run has no learner or no actor any more")
            if seconds and seconds[-1] - reported >= _REPORT_SECONDS:
                reported = seconds[-1]
                now = ", ".join(f"{role} {samples[role][-1].own:.0f} MiB" for role in _ROLES)
                print(f"  {reported / 60:.0f} of {minutes:g} minutes: {now}", file=sys.stderr)
            if process.poll() is not None:
                raise real_run.RunFailed(f"the run exited with code {process.returncode}")
            time.sleep(min(_SAMPLE_SECONDS, 6 * minutes))
    return {
        role: [
            memory_trend(seconds, [getattr(sample, name) for sample in of])
            for name in MemorySize._fields
        ]
        for role, of in samples.items()
    }


def main() -> None:
    """Parse the command line, measure the runs and print their memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="length of each run in minutes (5)"
    )
    parser.add_argument("--actors", default="1,2", help="numbers of actors (1,2)")
    parser.add_argument(
        "--places", default="actor,learner", help="places of inference (actor,learner)"
    )
    args, rest = parser.parse_known_args()
    print("MiB of each process          all:  start      end   own:  start      end   per hour")
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
