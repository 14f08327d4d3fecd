"""What a run's processes take of memory, what one more actor costs, and whether it stays so.

    python sandbox/benchmarks/memory.py [--minutes=5] [--actors=1,2] [any flag of experiment.py]

For each number of actors and each place of inference one real run on Pong, which is looked at every
few seconds from its first update on. Memory is PSS: pages that several processes share count for
each by its part, so that sums mean something. `begins` is the mean of the first tenth, `ends` that
of the last; `per hour` is the slope of a straight line through all but the first tenth.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import stages

ROOT = Path(__file__).resolve().parent.parent.parent
_PONG = "--level_name=PongNoFrameskip-v4"
_LOOK = 2.0  # seconds between two looks
_START = 180.0  # seconds after which a run that has not trained will not


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
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "experiment.py"), *argv, f"--logdir={folder}/run"]
        command += ["--stop_at_return=1e9", "--max_seconds=1e9"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            _wait_until_it_trains(process, Path(folder, "run", "metrics.jsonl"))
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
                    sys.exit(f"error: the run ended with code {process.returncode}")
                time.sleep(min(_LOOK, 6 * minutes))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait()
    return {role: course(seconds, sizes) for role, sizes in looks.items()}


def _wait_until_it_trains(process: subprocess.Popen, rows: Path) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline and process.poll() is None:
        lines = rows.read_text().splitlines() if rows.exists() else []
        if any(json.loads(line)["updates"] for line in lines[:-1]):
            return
        time.sleep(0.5)
    sys.exit(f"error: the run does not train (code {process.poll()})")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run (5)")
    parser.add_argument("--actors", default="1,2", help="numbers of actors (1,2)")
    given, rest = parser.parse_known_args()
    print("MiB of each process    begins     ends   per hour")
    for place in ("actor", "learner"):
        for actors in map(int, given.actors.split(",")):
            argv = [_PONG, f"--num_actors={actors}", f"--inference={place}", *rest]
            for role, memory in run(argv, given.minutes).items():
                what = f"{role}, {actors} actor{'s' * (actors > 1)}, inference at the {place}"
                print(f"{what}\n{memory.begins:29.0f}{memory.ends:9.0f}{memory.per_hour:+11.1f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
