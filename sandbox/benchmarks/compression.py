"""What --compression costs and saves, on this machine's loopback: CPU time and bytes.

    python sandbox/benchmarks/compression.py --level_name=PongNoFrameskip-v4 [more flags]

Unrolls: one learner's end and an actor's end for each way of sending, in processes of their own
(`worker.py`), turn by turn; what is sent was played. Steps, as actors send them with
--inference=learner: only what packing and unpacking a group of --num_envs takes, since the call
itself is inference's.
"""

import dataclasses
import statistics
import sys
import time

import numpy as np
from worker_client import Process

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.data.compression import PACKS, compressed, unpacked
from impala_mm.environments import from_flags
from impala_mm.environments.make import make_environments
from impala_mm.runtime import lifecycle

_TURNS, _SECONDS = 7, 0.6


def unrolls(config: Config) -> None:
    """Prints CPU time of both ends per unroll, and its bytes, for each way of sending."""
    envs, ends = config.num_envs, [Process(config, 1)]
    try:
        learner = ends[0]
        address = learner.ask(prepare="serve", batch=envs)["address"]
        actors, sizes = {}, {}
        for number, name in enumerate(PACKS):
            ends.append(Process(dataclasses.replace(config, compression=name), 1))
            said = ends[-1].ask(prepare="send", batch=envs, address=address, actor=number)
            actors[name], sizes[name] = ends[-1], said["unroll_bytes"]
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in PACKS}
        for turn in range(_TURNS):
            for name in list(PACKS)[:: 1 if turn % 2 else -1]:
                before = learner.ask()["cpu"]
                answer = actors[name].ask(go=_SECONDS, part="send", batch=envs)
                there = learner.ask()["cpu"] - before
                took[name].append((answer["cpu"] / answer["steps"], there / answer["steps"]))
    finally:
        for end in ends:
            end.end()
    for name, each in took.items():
        actor, learning = (1e6 * statistics.median(side) for side in zip(*each, strict=True))
        ratios = [sum(a) / sum(b) for a, b in zip(each, took["none"], strict=True)]
        print(
            f"an unroll, {name}: {sizes[name]:,.0f} bytes; microseconds: actor {actor:.0f}, "
            f"learner {learning:.0f}; together {statistics.median(ratios):.2f} times none's "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


def steps(config: Config) -> None:
    """Prints bytes of a step of one environment, and CPU time of packing and unpacking it."""
    lifecycle.load_tensorflow(1, 1)
    from impala_mm.data.step_codec import StepCodec  # noqa: PLC0415

    level, envs = next(iter(from_flags.levels_of(config))), config.num_envs
    playing = make_environments(level, envs, 1, **from_flags.options(config))
    codec, random = StepCodec(playing.spec.observation), np.random.default_rng(0)
    playing.reset()
    actions = random.integers(playing.spec.num_actions, size=[150, envs]).astype(np.int32)
    raw = [codec.encode(playing.step(chosen)) for chosen in actions][50:]
    playing.close()
    begin = time.process_time()
    packed = [compressed(content) for content in raw]
    between = time.process_time()
    back = [unpacked(content, codec.size * envs) for content in packed]
    end = time.process_time()
    assert back == raw
    count = len(raw) * envs
    print(
        f"a step: {codec.size:,} bytes, lz4 {sum(map(len, packed)) / count:,.0f}; microseconds: "
        f"pack {1e6 * (between - begin) / count:.2f}, unpack {1e6 * (end - between) / count:.2f}"
    )


def main() -> None:
    """Measures and prints."""
    (config,), _ = flags.parse(sys.argv, __doc__ or "", Config)
    unrolls(config)
    steps(config)


if __name__ == "__main__":
    main()
