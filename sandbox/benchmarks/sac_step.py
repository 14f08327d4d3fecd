"""The time of SAC's optimizer steps, beside that of the matrix products that they consist of.

    python sandbox/benchmarks/sac_step.py --level_name=Pendulum-v1 --units=256 --threads=1

A step multiplies matrices of [--columns, --units] and [--units, --units] 16 times, once for each
network, pass and gradient: policy and targets forward for the goals, Q-networks forward and
backward, policy forward and backward through the Q-networks. The efficiency is the time of these
products alone, divided by that of the step. The times are the smallest of --repeats, which
alternate: CPU time of one thread, or elapsed time of several. Other flags are those of
experiment.py.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Context
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec

PRODUCTS = 16
_UPDATE = 64  # optimizer steps of one update


def make_update(
    columns: int, units: int, compiled: bool, flags: Sequence[str]
) -> Callable[[], object]:
    """Return a function that makes an update of random steps, compiled or not."""
    given = [
        *flags, "--algorithm=sac", "--precision=float32", "--batch_size=8", "--unroll_length=8",
        f"--minibatch_steps={columns}", f"--mlp_sizes={units},{units}",
        "--intra_op_threads=1", f"--compile_updates={compiled}",  # flags of threads let it compile
    ]  # fmt: skip
    (config,), _ = command_line.parse(["", *given], "", Config)
    algorithm = registry.make_algorithm(config, level_spec(config.level_name))
    exchange = GradientReducer(SingleLearner(), config)
    random = np.random.default_rng(0)
    count = algorithm.minibatch_columns  # of steps, or of unrolls for a network with memory
    unroll = algorithm.unroll._replace(length=columns // count)
    batch = batches.zeros(unroll, count * _UPDATE)
    filled = tf.nest.map_structure(
        lambda x: random.uniform(-1, 1, x.shape).astype(x.dtype) if x.dtype.kind == "f" else x,
        batch,
    )._replace(weight=np.ones(count * _UPDATE, np.float32))
    inputs = tf.nest.map_structure(tf.constant, filled)
    context = Context(tf.constant(0.0), tf.constant(1.0), tf.constant(0.0))
    update = tf.function(lambda: algorithm.update(inputs, context, exchange)[0], autograph=False)

    def run() -> float:
        return float(update()["loss/total"])

    return run


def make_products(columns: int, units: int) -> Callable[[], object]:
    """Return a function that computes the products of an update, and nothing else."""
    left, right = tf.random.normal([columns, units]), tf.random.normal([units, units]) / units**0.5

    @tf.function(autograph=False)
    def multiply() -> tf.Tensor:
        return tf.while_loop(
            lambda i, _: i < PRODUCTS * _UPDATE,
            lambda i, x: (i + 1, x @ right),
            (0, left),
            parallel_iterations=1,
        )[1]

    return lambda: multiply().numpy()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Other flags are those of experiment.py."
    )
    parser.add_argument("--level_name", default="Pendulum-v1")
    parser.add_argument("--columns", type=int, default=256, help="steps of a minibatch")
    parser.add_argument("--units", type=int, default=256, help="of each of two layers")
    parser.add_argument("--threads", type=int, default=1, help="of TensorFlow within an operation")
    parser.add_argument("--operations", type=int, default=1, help="that TensorFlow runs at a time")
    parser.add_argument("--repeats", type=int, default=10)
    given, flags = parser.parse_known_args()
    flags = [f"--level_name={given.level_name}", *flags]
    tf.config.threading.set_intra_op_parallelism_threads(given.threads)
    tf.config.threading.set_inter_op_parallelism_threads(given.operations)
    clock = time.process_time if given.threads == given.operations == 1 else time.perf_counter
    sizes = given.columns, given.units
    ways = {
        "products": make_products(*sizes),
        "step, compiled": make_update(*sizes, True, flags),
        "step": make_update(*sizes, False, flags),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run()  # traces and compiles
    for _ in range(given.repeats):
        for name, run in ways.items():
            begin = clock()
            run()
            found[name].append((clock() - begin) / _UPDATE)
    products = min(found["products"])
    for name, seconds in found.items():
        print(f"{name:15} {1e3 * min(seconds):6.2f} ms   efficiency {products / min(seconds):.2f}")


if __name__ == "__main__":
    main()
