"""A machine with a GPU, measured within half an hour: a table, and a file to send.

    CUDA_HOME=/usr/local/cuda make setup DEVICE=gpu
    .venv/bin/python sandbox/benchmarks/gpu.py [--minutes=30] [--save=gpu.json]

Every line is a training of Pong in processes of its own, or of Breakout where it says so:

- learner: each update has 60 replayed unrolls with 4 new ones, so that the learner is what binds;
  `trained` counts all steps of its updates. By network and precision, with and without XLA.
- all: actors on all cores; who chooses the actions, by network.
- learners: two of them, on a GPU each or, which NCCL may refuse, on the only one.
- clock: seconds of training until a return of 18 in Pong and 300 in Breakout.

`waits` is the share of its time in which the learner waits for actors, and `gpu` how busy the
first GPU was, as nvidia-smi says. A line that fails tells why, and the others go on; what the
minutes do not suffice for is left out, and named. --device=cpu tries all of it without a GPU.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import real_run
from progress import print_progress

from impala_mm.records.run_contents import read_records
from impala_mm.runtime import machine, provenance

_START_SECONDS = 25.0  # that a run takes to start and to stop, about
_CLOCK_SECONDS = 420.0  # that Pong, and then Breakout, may take
_PONG = "--level_name=PongNoFrameskip-v4"
_REPLAY = "--replay=queue:0.0625,uniform:0.9375:2000"
_CLOCK = (
    ("Pong", 18, "--preset=atari-impala --entropy_cost=0.003"),
    ("Breakout", 300, "--preset=breakout-impala"),
)


class Line(NamedTuple):
    """A training that is measured."""

    name: str
    flags: str
    until: float = 0.0  # its return; 0: it is measured for some seconds
    place: str = "actor"  # where actions are chosen


def lines(cores: int) -> list[Line]:
    """Return all trainings of a machine with so many cores, the most important ones first."""
    actors = max(cores - 1, 1)
    found = []
    for network in ("ShallowConv", "SimpleConvNet", "ResNet"):
        pong = f"{_PONG} --agent_name={network}Agent --batch_size=64"
        for how in ("float32", "bfloat16", "bfloat16 --xla"):
            flags = f"{pong} {_REPLAY} --num_actors={actors} --num_envs=16 --precision={how}"
            found.append(Line(f"learner, {network}, {how.replace('--', '')}", flags))
        for place in ("actor", "learner"):
            flags = f"{pong} --num_actors={actors} --num_envs=32 --inference={place}"
            found.append(Line(f"all, {network}, actions by the {place}", flags, place=place))
    flags = f"{_PONG} --agent_name=SimpleConvNetAgent --batch_size=32 --num_envs=32"
    flags += f" --num_learners=2 --num_actors={2 * max(actors // 2, 1)}"
    found.append(Line("learners, 2 of SimpleConvNet", flags))
    for game, until, preset in _CLOCK:
        level = f"--level_name={game}NoFrameskip-v4 --num_actors={actors} --num_envs=16"
        found.append(Line(f"clock, {game} to {until}", f"{preset} {level}", until))
    return found


def measure(line: Line, device: str, seconds: float, limit: float) -> dict[str, Any]:
    """Train, and return the line's figures; a clock stops after `limit` seconds."""
    with real_run.start_run([*line.flags.split(), f"--device={device}"]) as (process, rows):
        if line.until:
            real_run.wait_until_training(process, rows)
            return _clock(process, rows, line.until, limit)
        run = real_run.measure_window(process, rows, seconds, line.place)
        found = {"steps/s": run.steps, "trained/s": run.trained}
        found["waits"] = run.metrics.get("wait_share", 0.0)
        for gpu in machine.measure_gpus()[:1]:
            found["gpu %"] = gpu.used
        return found


def _clock(process: subprocess.Popen, rows: Path, until: float, limit: float) -> dict[str, Any]:
    """Wait until a run has reached a return, or for `limit` seconds, or until it ends."""
    ends, newest = time.monotonic() + limit, dict[str, float]()
    while newest.get("return", -math.inf) < until:
        if time.monotonic() > ends or process.poll() is not None:
            return {"not reached": "", **newest}
        time.sleep(1)
        for row in read_records(rows)[-10:]:
            if "episode_return" in row:
                newest = {"return": row["episode_return"], "seconds": row["seconds"]}
    return {"reached": "", **newest}


def facts() -> dict[str, Any]:
    """Return what the figures depend on; a process of its own asks, which leaves the GPU free."""
    code = "import json, tensorflow as tf, horovod.tensorflow as hvd; print(json.dumps(["
    code += "[tf.config.experimental.get_device_details(gpu).get('device_name')"
    code += " for gpu in tf.config.list_physical_devices('GPU')], bool(hvd.nccl_built())]))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"error: TensorFlow or Horovod cannot be used: {ran.stderr.strip()[-500:]}")
    gpus, nccl = json.loads(ran.stdout.splitlines()[-1])
    found = {"machine": provenance.machine(), "gpus": gpus, "horovod has nccl": nccl}
    return found | {"versions": provenance.versions(), "commit": provenance.revision()}


def main() -> None:
    """Measure all lines, and print and save them as they come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, help="for all of it (30)")
    parser.add_argument("--seconds", type=float, default=25, help="for each line (25)")
    parser.add_argument("--save", type=Path, default=Path("gpu.json"), help="file (gpu.json)")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--only", default="", help="the lines whose names contain this")
    given = parser.parse_args()
    wanted = [line for line in lines(len(os.sched_getaffinity(0))) if given.only in line.name]
    if not wanted:
        parser.error(f"--only={given.only}: no line has this in its name")
    ends = time.monotonic() + 60 * given.minutes
    found = facts()
    if given.device == "gpu" and not found["gpus"]:
        sys.exit("error: TensorFlow sees no GPU; `make setup DEVICE=gpu` installs what it needs")
    print(*(f"{name}: {value}" for name, value in found.items()), "", sep="\n", flush=True)
    found["lines"] = {}
    for line in wanted:
        left = ends - time.monotonic() - _START_SECONDS
        if left < (60 if line.until else given.seconds):
            figures: dict[str, Any] = {"left out": "no time was left"}
        else:
            print_progress(f"{line.name}: {line.flags}")
            try:
                figures = measure(line, given.device, given.seconds, min(left, _CLOCK_SECONDS))
            except real_run.RunFailed as error:
                figures = {"failed": str(error)}
            except KeyboardInterrupt:
                sys.exit(130)  # the file has all lines so far
        found["lines"][line.name] = {"flags": line.flags, **figures}
        given.save.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{line.name:42} {_shown(figures)}", flush=True)
    print(f"\nwrote {given.save}")


def _shown(figures: dict[str, Any]) -> str:
    words = []
    for name, value in figures.items():
        shown = (
            value if isinstance(value, str) else f"{value:,.0f}" if value > 99 else f"{value:.2f}"
        )
        words.append(f"{name} {shown}".strip())
    return ", ".join(words)


if __name__ == "__main__":
    main()
