"""The speedup of several learners over one, measured in one session.

    python sandbox/benchmarks/scaling.py simulated [--learners=1,2,4,8] [--ms=10,30,100]
    python sandbox/benchmarks/scaling.py real [--learners=1,2,4] [--frames=400000]
    python sandbox/benchmarks/scaling.py sitting      all that many_learners.py needs: 10 minutes
    python sandbox/benchmarks/scaling.py draw         the figure and tables of multi_learner.md

simulated: a device whose update takes the given milliseconds, plus or minus a tenth, with real
queues and a real all-reduce of 6.8 MB (`simulated_algorithm.py`), for each mode of --allreduce.
Learners wait for the slowest of them, so even a free exchange would reach no more than

    bound = mean(t) / mean(max over learners of t)          with the times that were drawn
    efficiency = updates/s of N learners / updates/s of one

real: CartPole with the same total batch, split among the learners. They share this machine's cores,
so no speedup is possible: the loss is the overhead of several learners.

sitting: simulated learners, 1 to 8, at 30 and 100 ms; an all-reduce alone, by bytes and ranks; two
learners with few actors that take a given time to act; the bytes and CPU seconds of Pong's wire.

With --record the figures replace the earlier ones in sandbox/benchmarks/scaling.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from impala_mm.runtime import lifecycle

lifecycle.import_tensorflow()

import components  # noqa: E402
import simulated_algorithm  # noqa: E402
import tensorflow as tf  # noqa: E402
from real_run import ROOT  # noqa: E402

from impala_mm.config.settings import Config  # noqa: E402
from impala_mm.distributed import group  # noqa: E402
from impala_mm.records.run_contents import read_records  # noqa: E402
from launcher.supervise import mpirun  # noqa: E402

RECORD = Path(__file__).with_suffix(".json")
PAGE = ROOT / "sandbox" / "multi_learner.md"
_TABLES = ("<!-- tables: written by scaling.py -->", "<!-- end of tables -->")
ALLREDUCE_MODES = ("each", "grouped")
_SIMULATED = (
    *("--algorithm=sandbox.benchmarks.simulated_algorithm", "--level_name=catch"),
    *("--num_envs=1", "--batch_size=1", "--unroll_length=5"),
    *("--learner_assignment=fixed", "--check_sync_every=0"),
)
_MESSAGE_BYTES = (4, 400_000, 1_700_000, 6_800_000, 27_200_000)  # of an all-reduce
_ACTING_MS = 20.0  # of an actor, for each step
_RANKS_OPTION = "--as_rank"  # of this program, as mpirun starts it


def run_learners(learners: int, *flags: str, **env: str) -> list[dict]:
    """Run the given number of learners on this machine, and return the rows of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as logdir:
        command = [sys.executable, "experiment.py", f"--num_learners={learners}", *flags]
        command += [f"--logdir={logdir}", "--stop_at_return=1e9"]
        finished = subprocess.run(
            command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False
        )
        if finished.returncode:
            sys.exit(
                f"error: {' '.join(command)} exited with code {finished.returncode}:\n"
                f"{finished.stdout[-3000:]}"
            )
        return read_records(Path(logdir) / "metrics.jsonl")


def second_half_rate(rows: list[dict], key: str) -> tuple[float, int, int]:
    """Return (rate per second, first, last) of a counter over the second half of a run.

    The last row is ignored, because it is written when all learners have already finished.
    """
    end = rows[-2]
    begin = next(row for row in rows if row["seconds"] >= end["seconds"] / 2)
    return (
        (end[key] - begin[key]) / (end["seconds"] - begin["seconds"]),
        int(begin[key]),
        int(end[key]),
    )


def straggler_bound(milliseconds: float, learners: int, first: int, last: int) -> float:
    """Return the efficiency if learners only wait for the slowest, in updates first to last."""
    times = [
        [simulated_algorithm.update_seconds(milliseconds, rank, update) for rank in range(learners)]
        for update in range(first, last)
    ]
    return statistics.mean(map(statistics.mean, times)) / statistics.mean(map(max, times))


def measure_simulated(
    learners: list[int],
    milliseconds: list[int],
    seconds: float,
    modes: Sequence[str] = ALLREDUCE_MODES,
) -> list[dict]:
    """Print and return a row for each update time, number of learners and mode."""
    print("  ms  learners  allreduce  updates/s  efficiency  bound  efficiency/bound")
    found = []
    for ms in milliseconds:
        single_learner_rate = 0.0
        for count in learners:
            for mode in modes if count > 1 else modes[:1]:
                rows = run_learners(
                    *(count, *_SIMULATED, f"--num_actors={count}"),
                    *(f"--allreduce={mode}", f"--max_seconds={seconds}"),
                    SIMULATED_MS=str(ms),
                )
                per_second, first, last = second_half_rate(rows, "updates")
                single_learner_rate = single_learner_rate or per_second
                bound = straggler_bound(ms, count, first, last)
                efficiency = per_second / single_learner_rate
                row = {"ms": ms, "learners": count, "allreduce": mode if count > 1 else "-"}
                row |= {"updates_per_second": per_second, "efficiency": efficiency, "bound": bound}
                found.append(row)
                print(
                    f"{ms:4d}  {count:8d}  {row['allreduce']:>9}  {per_second:9.2f}  "
                    f"{efficiency:10.3f}  {bound:5.3f}  {efficiency / bound:16.3f}",
                    flush=True,
                )
    return found


def measure_actors(learners: int, counts: list[int], ms: int, seconds: float) -> list[dict]:
    """Return the updates per second with few actors, each of which takes a given time to act."""
    found = []
    for count in counts:
        rows = run_learners(
            *(learners, *_SIMULATED, f"--num_actors={count}", f"--max_seconds={seconds}"),
            SIMULATED_MS=str(ms),
            SIMULATED_ACTING_MS=str(_ACTING_MS),
        )
        row = {"learners": learners, "actors": count, "ms": ms, "acting_ms": _ACTING_MS}
        found.append(row | {"updates_per_second": second_half_rate(rows, "updates")[0]})
        print(found[-1], flush=True)
    return found


def measure_allreduce(learners: list[int]) -> list[dict]:
    """Return the median seconds of an all-reduce between processes here, by bytes and ranks."""
    found = []
    for count in learners:
        command = [sys.executable, __file__, "sitting", _RANKS_OPTION]
        command = mpirun.local_command(mpirun.find(sys.executable), count, command)
        env = os.environ | mpirun.environment(os.geteuid() == 0)
        ran = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        found += json.loads(ran.stdout.splitlines()[-1])
        print(*found[-len(_MESSAGE_BYTES) :], sep="\n", flush=True)
    return found


def time_allreduce() -> None:
    """Print how long an all-reduce takes, as one of the ranks that mpirun started."""
    learners, found = group.join_group(Config.of_algorithm("impala")()), []
    for nbytes in _MESSAGE_BYTES:
        average = tf.function(lambda x, name=f"x{nbytes}": learners.mean([x], name)[0])
        seconds, tensor = [], tf.zeros([nbytes // 4])
        for _ in range(25):
            begin = time.monotonic()
            average(tensor).numpy()
            seconds.append(time.monotonic() - begin)
        median = statistics.median(seconds[5:])
        found.append({"learners": learners.size, "bytes": nbytes, "seconds": median})
    if learners.rank == 0:
        print(json.dumps(found), flush=True)
    learners.leave()


def measure_sitting(seconds: float) -> dict[str, Any]:
    """Measure what `many_learners.py` needs."""
    pong = Config.of_algorithm("impala").suited_to("PongNoFrameskip-v4")
    return {
        "allreduce": measure_allreduce([2, 4, 8]),
        "simulated": measure_simulated([1, 2, 4, 8], [100, 30], seconds, ["each"]),
        "actors": measure_actors(2, [2, 4, 8], 30, seconds),
        "wire": components.measure_wire(pong(level_name="PongNoFrameskip-v4"))._asdict(),
        "date": time.strftime("%Y-%m-%d"),
        "host": components.describe_host(),
    }


def measure_real(learners: list[int], frames: int, rounds: int) -> list[dict]:
    """Print and return the median steps/s for each number of learners, relative to one."""
    rates: dict[int, list[float]] = {count: [] for count in learners}
    for _ in range(rounds):
        for count in learners:
            rows = run_learners(
                count,
                *("--level_name=CartPole-v1", f"--batch_size={16 // count}"),
                f"--num_actors={max(learners)}",
                f"--total_environment_frames={frames}",
            )
            rates[count].append(second_half_rate(rows, "steps")[0])
    medians = {count: statistics.median(of) for count, of in rates.items()}
    print("learners  steps/s  relative to one")
    found = []
    for count, median in medians.items():
        share = median / medians[learners[0]]
        found.append({"learners": count, "steps_per_second": median, "of_one": share})
        print(f"{count:8d}  {median:7.0f}  {share:15.2f}")
    return found


def draw_efficiency(record: dict, target: Path) -> None:
    """Draw the efficiency over the number of learners and its bound, one panel per update time."""
    sys.path.append(str(ROOT / "sandbox"))
    import plot_style  # noqa: PLC0415

    rows = record["simulated"]
    times = sorted({row["ms"] for row in rows})
    figure, panels = plot_style.pyplot().subplots(
        1, len(times), figsize=(9, 3), sharey=True, layout="constrained", squeeze=False
    )
    for panel, ms in zip(panels[0], times, strict=True):
        here = [row for row in rows if row["ms"] == ms]
        each = [row for row in here if row["allreduce"] != "grouped"]
        counts = [row["learners"] for row in each]
        panel.plot(counts, [row["bound"] for row in each], "--", color="gray", label="bound")
        for mode in ALLREDUCE_MODES:
            line = [row for row in here if row["allreduce"] in ("-", mode)]
            values = [row["efficiency"] for row in line]
            panel.plot([row["learners"] for row in line], values, "o-", label=f"--allreduce={mode}")
        panel.set(title=f"{ms} ms per update", xlabel="learners", xscale="log", ylim=(0, 1.05))
        panel.set_xticks(counts, [str(count) for count in counts], minor=False)
        panel.minorticks_off()
    panels[0][0].set_ylabel("efficiency")
    panels[0][0].legend()
    plot_style.save_figure(figure, target)


def write_tables(record: dict) -> None:
    """Write the tables into the page; of the simulated runs those of the default mode."""
    lines = ["| ms per update | learners | efficiency | bound |", "|---|---|---|---|"]
    lines += [
        f"| {row['ms']} | {row['learners']} | {row['efficiency']:.2f} | {row['bound']:.2f} |"
        for row in record["simulated"]
        if row["learners"] > 1 and row["allreduce"] == "each"
    ]
    lines += ["", "| learners, CartPole | steps/s | relative to one |", "|---|---|---|"]
    lines += [
        f"| {row['learners']} | {row['steps_per_second']:,.0f} | {row['of_one']:.2f} |"
        for row in record["real"]
    ]
    before, rest = PAGE.read_text().split(_TABLES[0])
    PAGE.write_text(
        "\n".join([before + _TABLES[0], *lines, _TABLES[1] + rest.split(_TABLES[1])[1]])
    )


def main() -> None:
    """Parse the command line, and measure or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("simulated", "real", "sitting", "draw"))
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--learners", type=numbers, default=[1, 2, 4], help="numbers (1,2,4)")
    parser.add_argument(
        "--ms", type=numbers, default=[10, 30, 100], help="update times (10,30,100)"
    )
    parser.add_argument(
        "--seconds", type=float, default=40, help="seconds of each simulated run (40)"
    )
    parser.add_argument(
        "--frames", type=int, default=400_000, help="environment frames of each real run (400000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="repetitions of the real runs, interleaved (3)"
    )
    parser.add_argument("--record", action="store_true", help=f"write the figures to {RECORD.name}")
    parser.add_argument(_RANKS_OPTION, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        time_allreduce()
        return
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if args.what == "draw":
        if not {"simulated", "real"} <= record.keys():
            parser.error("nothing was recorded: run simulated and real with --record first")
        draw_efficiency(record, PAGE.with_name("scaling.svg"))
        write_tables(record)
        return
    if args.learners[0] != 1:
        parser.error("--learners must begin with 1: the others are compared with one learner")
    began = time.monotonic()
    if args.what == "simulated":
        found = measure_simulated(args.learners, args.ms, args.seconds)
        key = lambda row: (-row["ms"], row["learners"], row["allreduce"])  # noqa: E731
        rows = {key(row): row for row in [*record.get("simulated", []), *found]}
        record["simulated"] = [rows[at] for at in sorted(rows)]
    elif args.what == "sitting":
        record["sitting"] = measure_sitting(args.seconds)
    else:
        record["real"] = measure_real(args.learners, args.frames, args.rounds)
    print(f"{time.monotonic() - began:.0f} s, {len(os.sched_getaffinity(0))} cores")
    if args.record:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
