"""The cost and the saving of --compression over this machine's loopback: CPU time and bytes.

    python sandbox/benchmarks/compression.py --level_name=PongNoFrameskip-v4 [more flags]

Unrolls: one learner's end, and an actor's end for each compression, each in a process of its own
(`worker.py`), are measured in turn. The unrolls come from real games. Steps, as actors send them
with --inference=learner: only packing and unpacking a group of --num_envs is measured, because the
call itself belongs to inference.
"""

import dataclasses
import statistics
import sys
import time

import components
import numpy as np
from worker_client import WorkerProcess

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data.compression import COMPRESSORS, compress_lz4, decompress
from impala_mm.environments import from_flags
from impala_mm.environments.make import make_environments
from impala_mm.runtime import lifecycle

_ROUNDS, _SECONDS = 7, 0.6


def benchmark_unrolls(config: Config) -> None:
    """Print the CPU time of both ends per unroll and its bytes, for each compression."""
    envs, processes = config.num_envs, [WorkerProcess(config, 1)]
    try:
        learner = processes[0]
        address = learner.request(prepare="receive_unrolls", batch=envs)["address"]
        actors, sizes = {}, {}
        for number, name in enumerate(COMPRESSORS):
            processes.append(WorkerProcess(dataclasses.replace(config, compression=name), 1))
            prepared = processes[-1].request(
                prepare="send_unrolls", batch=envs, address=address, actor=number
            )
            actors[name], sizes[name] = processes[-1], prepared["unroll_bytes"]
        cpu_by_pack: dict[str, list[tuple[float, float]]] = {name: [] for name in COMPRESSORS}
        for round_number in range(_ROUNDS):
            for name in list(COMPRESSORS)[:: 1 if round_number % 2 else -1]:
                before = learner.request()["cpu"]
                answer = actors[name].request(
                    measure_seconds=_SECONDS, task="send_unrolls", batch=envs
                )
                learner_cpu = learner.request()["cpu"] - before
                cpu_by_pack[name].append(
                    (answer["cpu"] / answer["steps"], learner_cpu / answer["steps"])
                )
    finally:
        for process in processes:
            process.kill()
    for name, each in cpu_by_pack.items():
        actor, learning = (1e6 * statistics.median(side) for side in zip(*each, strict=True))
        ratios = [sum(a) / sum(b) for a, b in zip(each, cpu_by_pack["none"], strict=True)]
        print(
            f"an unroll, {name}: {sizes[name]:,.0f} bytes; microseconds: actor {actor:.0f}, "
            f"learner {learning:.0f}; together {statistics.median(ratios):.2f} times the cost "
            f"without compression ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def benchmark_steps(config: Config) -> None:
    """Print the bytes of one environment's step, and the CPU time of packing and unpacking."""
    lifecycle.load_tensorflow(1, 1)
    from impala_mm.data.step_codec import StepCodec  # noqa: PLC0415

    level, envs = next(iter(from_flags.level_specs(config))), config.num_envs
    environments = make_environments(level, envs, 1, **from_flags.environment_options(config))
    spec, random = environments.spec, np.random.default_rng(0)
    codec = StepCodec(spec.observation, spec.masks)
    environments.reset()
    actions = random.integers(environments.spec.num_actions, size=[150, envs]).astype(np.int32)
    raw = [codec.encode(environments.step(chosen)) for chosen in actions][50:]
    environments.close()
    began = time.process_time()
    packed = [compress_lz4(content) for content in raw]
    packed_at = time.process_time()
    decompressed = [decompress(content, codec.size * envs) for content in packed]
    unpacked_at = time.process_time()
    assert decompressed == raw
    count = len(raw) * envs
    print(
        f"a step: {codec.size:,} bytes, lz4 {sum(map(len, packed)) / count:,.0f}; microseconds: "
        f"pack {1e6 * (packed_at - began) / count:.2f}, "
        f"unpack {1e6 * (unpacked_at - packed_at) / count:.2f}"
    )


def main() -> None:
    """Measure unrolls and steps, and print the results."""
    (config,), _ = command_line.parse(sys.argv, __doc__ or "", Config)
    components.refuse_auto(config)
    benchmark_unrolls(config)
    benchmark_steps(config)


if __name__ == "__main__":
    main()
