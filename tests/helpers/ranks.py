"""A program for learners under mpirun that make updates on their parts of the same batches.

`python tests/helpers/ranks.py FOLDER NETWORK CASE...` trains in each of these cases and writes the
results to files, which `test_exact` compares.
"""

import random
import sys
import threading
import time
from pathlib import Path

import in_process
import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Context
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed import group
from impala_mm.distributed.agreement import Agreement
from impala_mm.distributed.gradients import GradientReducer

T, B, UPDATES, LONG, CLIP = 5, 8, 10, 100, 0.02
NETWORKS = ("MLPAgent", "MLPLSTMAgent")
PPO = {
    "algorithm": "ppo", "batch_size": B // 2, "epochs": 2, "minibatches": 2, "target_kl": 0.1,
    "recompute_advantages": True,
}  # fmt: skip
# Other ways to average gradients, by case.
OTHER_WAYS = {"grouped": {"allreduce": "grouped"}, "halves": {"gradient_dtype": "float16"}}
# Arguments of `learn` by case. One learner imitates two or four.
CASES = {
    "mean": {"loss_reduction": "mean"},
    "sum": {"loss_reduction": "sum"},
    **{f"sum-divided{n}": {"loss_reduction": "sum", "divisor": n} for n in (2, 4)},
    **{
        f"sum-clip{n}": {"loss_reduction": "sum", "gradients_clipping": CLIP * n, "updates": 1}
        for n in (2, 4)
    },
    **{case: {"loss_reduction": "mean", "updates": 1} | ways for case, ways in OTHER_WAYS.items()},
    "long": {"updates": LONG},
    "ppo-longer": {"updates": LONG} | PPO,
    "ppo-long": {"updates": LONG // (PPO["epochs"] * PPO["minibatches"])} | PPO,
}


class Recording(group.SingleLearner):
    """A run's group that divides gradients first and keeps their averages."""

    def __init__(self, learners, divisor):
        self._learners, self._divisor = learners, divisor
        self.rank, self.size = learners.rank, learners.size
        self.averaged = []

    def mean(self, tensors, name, compressed=False):
        if not compressed:  # no gradients
            return self._learners.mean(tensors, name)
        self.averaged[:] = self._learners.mean([t / self._divisor for t in tensors], name, True)
        return list(self.averaged)


def batch_of(algorithm, number, columns):
    """Return the given columns of batch `number`, which is the same for all learners."""
    generator = np.random.default_rng(number)

    def some(spec, lead):
        shape = [*lead, *spec.shape]
        if spec.dtype == tf.bool:
            return generator.random(shape) < 0.1
        if spec.dtype.is_integer:
            return generator.integers(0, 3, shape).astype(spec.dtype.as_numpy_dtype)
        return generator.standard_normal(shape).astype(np.float32)

    entries = tf.nest.map_structure(
        lambda s: some(s, [T + 1, B])[:, columns], algorithm.unroll.step
    )
    start = tf.nest.map_structure(lambda s: some(s, [B])[columns], algorithm.unroll.start)
    size = len(columns)
    one = tf.ones([size])
    numbers = tf.zeros([size], tf.int64)
    return tf.nest.map_structure(
        tf.convert_to_tensor, Batch(entries, start, numbers, one, numbers, one > 0)
    )


def learn(learners, folder, name, updates=UPDATES, divisor=1.0, **settings):
    """Make `updates` updates of one case, and write FOLDER/NAME-RANK.npz."""
    settings = {"optimizer": "rmsprop", "learning_rate": 0.01} | settings
    kind = Config.of_algorithm(settings.get("algorithm", "impala"))
    config = kind(level_name="catch", unroll_length=T, **settings)
    algorithm = in_process.make(config)
    variables = [*algorithm.variables.trained, *algorithm.variables.carried]
    learners.broadcast(variables)
    recording, clipped = Recording(learners, divisor), []
    apply = algorithm._optimizer.apply

    def kept(gradients, variables):
        clipped[:] = gradients
        apply(gradients, variables)

    algorithm._optimizer.apply = kept
    context = Context(tf.constant(0.0), tf.constant(1e9), tf.constant(0.0))
    exchange = GradientReducer(recording, config)

    def update(batch):
        # Eager, so that averaged and clipped gradients can be read.
        algorithm.update(batch, context, exchange)

    mine = np.arange(B).reshape(learners.size, -1)[learners.rank]
    found = {}
    for number in range(updates):
        batch = batch_of(algorithm, number, mine)
        if number == 0:
            update(batch)
            for i, (before, after) in enumerate(zip(recording.averaged, clipped, strict=True)):
                found |= {f"before{i}": before.numpy(), f"after{i}": after.numpy()}
            update = tf.function(update, autograph=False)
        else:
            update(batch)
    found |= {f"variable{i:02d}": v.numpy() for i, v in enumerate(variables)}
    np.savez(folder / f"{name}-{learners.rank}.npz", **found)


def learn_case(learners, folder, network, case):
    """Make the updates of one case with this network, or with the case's own one."""
    given = CASES[case]
    if "algorithm" not in given:
        given = {"gradients_clipping": CLIP, "agent_name": network} | given
    learn(learners, folder, case, **given)


def talk(learners, folder, times=150):
    """Gather and sum in two threads under separate names, at random moments."""
    wrong = []

    def say(name):
        pauses = random.Random(f"{name}{learners.rank}")
        for i in range(times):
            time.sleep(pauses.uniform(0, 0.004))
            heard = learners.gather((name, i, "x" * pauses.randrange(100)), name)
            total = learners.sum(tf.constant([i + 0.5], tf.float64), f"{name}.sum")
            if [h[:2] for h in heard] != [(name, i)] * learners.size:
                wrong.append((name, i, heard))
            if float(total[0]) != learners.size * (i + 0.5):
                wrong.append((name, i, total))

    threads = [threading.Thread(target=say, args=[name]) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (folder / f"talk-{learners.rank}").write_text(repr(wrong))


def main(folder, network, cases):
    config = Config()
    Agreement(config).reach_through_mpi(print)  # Horovod finds MPI initialised, as in a run
    learners = group.join_group(config)
    for case in cases:
        if case == "talk":
            talk(learners, folder)
            continue
        joined = learners
        if case in OTHER_WAYS:
            joined = group.HorovodGroup(Config(**OTHER_WAYS[case]))
        learn_case(joined, folder, network, case)
    learners.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
