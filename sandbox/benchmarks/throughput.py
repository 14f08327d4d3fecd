"""Steps per second of a real run, beside what its parts would allow, measured in the same sitting.

    python sandbox/benchmarks/throughput.py --level_name=catch [any flag of experiment.py]

First each part alone, on one thread: stepping the environments, inference, packing unrolls and
unpacking batches, training. Then the run itself, a learner and its actors as processes, for
--max_seconds (default 30). Microseconds are core-microseconds per step;

    efficiency = achieved steps/s / (cores / (environment + inference + training))

and what the run's processes took of the CPU, by role, says where the rest went.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from impala_mm import tensorflow_import

tensorflow_import.load()

import numpy as np
import tensorflow as tf

from impala_mm import agreement, environments, exchange, flags, group
from impala_mm.actor import Player
from impala_mm.algorithms import Context
from impala_mm.config import Config
from impala_mm.trajectory import Batch, Codec

ROOT = Path(__file__).resolve().parent.parent.parent
_SECONDS = 3.0  # that each part is measured


def per_call(call: Callable[[], object]) -> float:
    """CPU seconds of this process for each call, once it is warm."""
    call(), call()
    count, begin, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - begin < _SECONDS:
        call()
        count += 1
    return (time.process_time() - cpu) / count


def parts(config: Config) -> dict[str, float]:
    """Core-microseconds per step of each part."""
    algorithm, _, levels, _, _ = agreement.make(config, 0)
    level, spec = next(iter(levels.items()))
    playing = environments.make(level, config.num_envs, 1, **agreement.options(config))
    envs, length, batch = config.num_envs, config.unroll_length, config.batch_size
    playing.reset()
    random = np.random.default_rng(0)
    actions = random.integers(spec.num_actions, size=[1000, envs]).astype(np.int32)
    turn = iter(range(10**9))
    found = {"environment": per_call(lambda: playing.step(actions[next(turn) % 1000])) / envs}
    playing.episodes()

    player = Player(algorithm, playing, envs)
    entry, state = player._entry(0), player._state
    found["inference"] = per_call(lambda: player._act(entry, state)) / envs
    whole = per_call(player.play) / envs / length
    found["packing"] = max(whole - found["environment"] - found["inference"], 0.0)

    codec = Codec(algorithm.unroll)
    contents: list[bytes] = []
    while len(contents) < batch:
        contents += player.play()
    content = tf.constant(contents[:batch])
    decode = tf.function(codec.decode, autograph=False)
    found["unpacking"] = per_call(lambda: decode(content)) / batch / length
    one = tf.ones([batch])
    known = Batch(*decode(content), tf.range(batch), one, tf.zeros([batch], tf.int64), one > 0)
    context = Context(tf.constant(0.0), tf.constant(1e9), tf.constant(0.0))
    alone = exchange.Exchange(group.Alone(), config)
    update = tf.function(lambda b, c: algorithm.update(b, c, alone), autograph=False)
    found["training"] = per_call(lambda: update(known, context)) / batch / length
    playing.close()
    return {name: seconds * 1e6 for name, seconds in found.items()}


def run(argv: list[str], seconds: float) -> tuple[float, dict[str, float]]:
    """(steps per second, core-seconds per second by role) of the second half of a real run."""
    with tempfile.TemporaryDirectory() as logdir:
        command = [sys.executable, str(ROOT / "experiment.py"), *argv, f"--logdir={logdir}"]
        command += [f"--max_seconds={seconds}", "--stop_at_return=1e9"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        rows_file, marks = Path(logdir) / "metrics.jsonl", []
        while process.poll() is None:
            time.sleep(0.25)
            lines = rows_file.read_text().splitlines() if rows_file.exists() else []
            row = json.loads(lines[-1]) if lines else {"seconds": 0.0, "steps": 0}
            marks.append((row["seconds"], row["steps"], _cpu(process.pid)))
        if process.returncode:
            sys.exit(f"error: the run ended with code {process.returncode}")
    # Between two rows, both seen soon after they were written.
    changed = [b for a, b in itertools.pairwise(marks) if b[0] > a[0]]
    begin = next(mark for mark in changed if mark[0] >= seconds / 2)
    end = changed[-2]
    span = end[0] - begin[0]
    used = {role: (end[2][role] - begin[2][role]) / span for role in end[2]}
    return (end[1] - begin[1]) / span, used


def _cpu(learner: int) -> dict[str, float]:
    """CPU seconds so far of the learner and of its actors."""
    used = {"learner": 0.0, "actors": 0.0}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it ended meanwhile
            continue
        role = "learner" if stat.parent.name == str(learner) else "actors"
        if role == "learner" or int(fields[1]) == learner:
            used[role] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def main() -> None:
    """Measures and prints."""
    if "--help" in sys.argv:
        sys.exit(__doc__)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    (config,), _ = flags.parse(sys.argv, __doc__ or "", Config)
    cores = len(os.sched_getaffinity(0))
    found = parts(config)
    print(f"{config.level_name}, {config.num_envs} environments per actor, batch of")
    print(f"{config.batch_size} x {config.unroll_length} steps, {config.num_actors} actors")
    for name, micro in found.items():
        print(f"  {name:12} {micro:8.1f} us per step")
    bound = cores * 1e6 / (found["environment"] + found["inference"] + found["training"])
    seconds = min(config.max_seconds, 30.0)
    argv = [a for a in sys.argv[1:] if not re.match("--(max_seconds|logdir)=", a)]
    achieved, used = run(argv, seconds)
    print(f"  {achieved:,.0f} steps/s; the parts allow {bound:,.0f} on {cores} cores")
    print(f"  efficiency {achieved / bound:.2f}")
    for role, share in used.items():
        print(f"  {role:12} {share:8.2f} cores, {share / achieved * 1e6:8.1f} us per step")


if __name__ == "__main__":
    main()
