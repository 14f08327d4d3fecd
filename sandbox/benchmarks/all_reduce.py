"""The time that two learners on one machine take to average gradients, by way.

    python sandbox/benchmarks/all_reduce.py [--turns=3] [--times=300]

The ways: Open MPI with its defaults, which listens on all network interfaces; Open MPI as the
launcher starts it, in shared memory and on the loopback interface alone; and Gloo. They take
turns, so that other load on the machine affects all of them.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from impala_mm.runtime import lifecycle
from launcher.supervise import loopback, mpirun
from launcher.supervise.task import Task

_RANKS = 2
_BYTES = {"CartPole's network (20 kB)": 20_000, "Pong's network (6.8 MB)": 6_800_000}
_WARM_UP = 20
_TIMEOUT = 300


def average(times: int) -> None:
    """Average both gradients `times` times as one of the ranks; the first prints the seconds."""
    lifecycle.load_tensorflow(1, 1)
    import horovod.tensorflow as hvd  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    hvd.init()
    medians = {}
    for name, size in _BYTES.items():
        gradient = tf.ones([size // 4])
        seconds = []
        for _ in range(_WARM_UP + times):
            began = time.perf_counter()
            hvd.allreduce(gradient, name=name)
            seconds.append(time.perf_counter() - began)
        medians[name] = statistics.median(seconds[_WARM_UP:])
    if hvd.rank() == 0:
        print(json.dumps(medians), flush=True)
    hvd.shutdown()


def commands(folder: Path, times: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command of each way and the variables that it adds."""
    rank = [sys.executable, __file__, "--rank", f"--times={times}"]
    binaries = Path(sys.executable).parent
    program = mpirun.find(sys.executable)
    if not program:
        sys.exit("error: there is no mpirun: `make horovod` installs it")
    by_mpi = [program, *mpirun.OPTIONS, "-np", str(_RANKS), *rank]
    task = Task(
        *("learners", "learner", "", by_mpi, dict(os.environ), str(folder), str(folder)),
        log="",
        log_max_mb=0.0,
        leader="",
        lease_secs=0.0,
        rows="",
        has_other_hosts=False,
        restarts=0,
        stall_secs=0.0,
        grace_secs=0.0,
    )
    variables, note = loopback.variables(task, folder)
    if note:
        print(note)
    gloo = [str(binaries / "horovodrun"), "--gloo", "-np", str(_RANKS), *rank]
    return {"MPI": (by_mpi, {}), "MPI, local": (by_mpi, variables), "Gloo": (gloo, {})}


def main() -> None:
    """Print the medians of each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.rank:
        average(settings.times)
        return
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ways = commands(Path(folder), settings.times)
        for _ in range(settings.turns):
            for way, (command, variables) in ways.items():
                ran = subprocess.run(
                    command,
                    env=os.environ | mpirun.environment(os.geteuid() == 0) | variables,
                    capture_output=True,
                    check=False,
                    text=True,
                    timeout=_TIMEOUT,
                )
                rows = [line[line.index("{") :] for line in ran.stdout.splitlines() if "{" in line]
                if ran.returncode or not rows:
                    sys.exit(f"{way} failed with code {ran.returncode}:\n{ran.stderr}")
                found.setdefault(way, []).append(json.loads(rows[-1]))
    for name in _BYTES:
        print(f"\n{name}")
        for way, medians in found.items():
            each = ", ".join(f"{1e3 * row[name]:.2f}" for row in medians)
            print(f"  {way:<12}{each} ms")


if __name__ == "__main__":
    main()
