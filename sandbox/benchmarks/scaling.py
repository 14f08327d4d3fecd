"""How much faster several learners are than one, in one sitting.

    python sandbox/benchmarks/scaling.py simulated [--learners=1,2,4,8] [--ms=10,30,100]
    python sandbox/benchmarks/scaling.py real [--learners=1,2,4] [--frames=400000]

simulated: devices whose step takes so many milliseconds, give or take a tenth, with real queues and
a real all-reduce of 6.8 MB around them (`simulated.py`). Learners wait for the slowest of them, so
even an exchange that cost nothing would reach no more than

    bound = mean(t) / mean(max over learners of t)          of the very times that were drawn
    efficiency = updates/s of N learners / updates/s of one

real: CartPole with the same batch, split among the learners; they share this machine's cores, so
no gain is to be expected: what is lost is the overhead of several learners.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from impala_mm import tensorflow_import

tensorflow_import.load()

import simulated  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent


def run(learners: int, *flags: str, **env: str) -> list[dict]:
    """The rows of metrics.jsonl of a run of so many learners on this machine."""
    with tempfile.TemporaryDirectory() as logdir:
        command = [sys.executable, "experiment.py", f"--num_learners={learners}", *flags]
        command += [f"--logdir={logdir}", "--stop_at_return=1e9"]
        ran = subprocess.run(
            command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            sys.exit(
                f"error: {' '.join(command)} ended with {ran.returncode}:\n{ran.stdout[-3000:]}"
            )
        lines = (Path(logdir) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def rate(rows: list[dict], key: str) -> tuple[float, int, int]:
    """(per second, from, to) of a count that grows, over the second half of a run."""
    half = rows[-1]["seconds"] / 2
    begin = next(row for row in rows if row["seconds"] >= half)
    end = rows[-1]
    return (
        (end[key] - begin[key]) / (end["seconds"] - begin["seconds"]),
        int(begin[key]),
        int(end[key]),
    )


def bound(milliseconds: float, learners: int, first: int, last: int) -> float:
    """What waiting for the slowest allows, of the updates from first to last."""
    drawn = [
        [simulated.seconds(milliseconds, rank, update) for rank in range(learners)]
        for update in range(first, last)
    ]
    return statistics.mean(map(statistics.mean, drawn)) / statistics.mean(map(max, drawn))


def simulate(learners: list[int], milliseconds: list[float], seconds: float) -> None:
    """Prints a row for each time and number of learners."""
    print("  ms  learners  updates/s  efficiency  bound  of the bound")
    for ms in milliseconds:
        alone = 0.0
        for count in learners:
            rows = run(
                count,
                *("--algorithm=sandbox.benchmarks.simulated", "--level_name=catch"),
                *("--num_envs=1", "--batch_size=1", "--unroll_length=5", "--check_sync_every=0"),
                *(f"--num_actors={count}", "--learner_assignment=fixed"),
                f"--max_seconds={seconds}",
                SIMULATED_MS=str(ms),
            )
            per_second, first, last = rate(rows, "updates")
            alone = alone or per_second
            most = bound(ms, count, first, last)
            reached = per_second / alone
            print(
                f"{ms:4.0f}  {count:8d}  {per_second:9.2f}  {reached:10.3f}  {most:5.3f}  "
                f"{reached / most:12.3f}",
                flush=True,
            )


def compare(learners: list[int], frames: int, rounds: int) -> None:
    """Prints steps/s of each number of learners as a share of one learner's, medians of rounds."""
    found: dict[int, list[float]] = {count: [] for count in learners}
    for _ in range(rounds):
        for count in learners:
            rows = run(
                count,
                *("--level_name=CartPole-v1", f"--batch_size={16 // count}", "--num_actors=2"),
                f"--total_environment_frames={frames}",
            )
            found[count].append(rate(rows, "steps")[0])
    one = statistics.median(found[learners[0]])
    print("learners  steps/s  of one learner's")
    for count, rates in found.items():
        print(
            f"{count:8d}  {statistics.median(rates):7.0f}  {statistics.median(rates) / one:16.2f}"
        )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("simulated", "real"))
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--learners", type=numbers, default=[1, 2, 4])
    parser.add_argument("--ms", type=numbers, default=[10, 30, 100])
    parser.add_argument("--seconds", type=float, default=40, help="of each simulated run")
    parser.add_argument("--frames", type=int, default=400_000, help="of each real run")
    parser.add_argument("--rounds", type=int, default=3, help="of real runs, interleaved")
    given = parser.parse_args()
    began = time.monotonic()
    if given.what == "simulated":
        simulate(given.learners, given.ms, given.seconds)
    else:
        compare(given.learners, given.frames, given.rounds)
    print(f"{time.monotonic() - began:.0f} s, {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
