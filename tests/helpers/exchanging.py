"""A program for learners under mpirun that average gradients and numbers in unusual places.

`python tests/helpers/exchanging.py FOLDER` makes two updates in every case and writes what came of
them to FOLDER/RANK.json, which `test_exchange` compares. Each learner has its part of one batch.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm
from impala_mm.algorithms.parts import optimizers
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.data.variables import Variables
from impala_mm.distributed import group
from impala_mm.distributed.agreement import Agreement
from impala_mm.learner.train_step import GradientNotFinite, TrainStep

INPUTS = np.random.default_rng(0).standard_normal([8, 3]).astype(np.float32)
WAYS = {
    "plain": {},
    "xla": {"xla": True},
    "grouped": {"allreduce": "grouped"},
    "halves": {"gradient_dtype": "float16"},
    "all": {"xla": True, "allreduce": "grouped", "gradient_dtype": "float16"},
}


class Fitting(Algorithm):
    """Linear regression, whose updates are those of one case."""

    def __init__(self, case, learners, num_learners, bad_step=0):
        self.weights = tf.Variable([1.0, 2.0, 3.0], name="fit/w")
        self.rows = tf.Variable(tf.ones([4, 1]), name="fit/rows")  # an embedding
        self.double = tf.Variable(1.0, dtype=tf.float64, name="fit/double")
        self.trained = [self.weights, self.rows, self.double]
        self._optimizers = [optimizers.RMSProp(0.01), optimizers.Adam(0.02)]
        for optimizer in self._optimizers:
            optimizer.initialize(self.trained)
        self._steps, self._bad_step = tf.Variable(0), bad_step
        slots = [variable for one in self._optimizers for variable in one.variables]
        self.variables = Variables(self.trained, [*slots, self._steps], [])
        self._case, self._learners, self._num_learners = case, learners, num_learners

    def update(self, batch, context, exchange):
        return getattr(self, self._case)(batch.unrolls, exchange), batch.weight

    def _step(self, inputs, exchange, optimizer=0):
        bad = tf.equal(self._steps.assign_add(1), self._bad_step)
        bad = bad & (self._learners.rank == self._learners.size - 1)

        def compute():
            row = tf.gather(self.rows, [0])[0, 0] + tf.cast(self.double, tf.float32)
            error = tf.linalg.matvec(inputs, self.weights) - row
            return (tf.reduce_mean(error**2) * tf.where(bad, float("nan"), 1.0),)

        (loss,), gradients = exchange.differentiate(compute, self.trained)
        exchange.apply(self._optimizers[optimizer], gradients, self.trained)
        return loss

    def cond(self, inputs, exchange):
        positive = exchange.mean(self.weights[0]) > 0
        loss = tf.cond(positive, lambda: self._step(inputs, exchange), lambda: float("nan"))
        return {"loss": exchange.mean(loss)}

    def loop(self, inputs, exchange):
        def body(i, total):
            return i + 1, total + exchange.mean(self._step(inputs, exchange))

        return {"loss": tf.while_loop(lambda i, _: i < 20, body, (0, 0.0))[1] / 20}

    def function(self, inputs, exchange):
        step = tf.function(lambda: self._step(inputs, exchange), autograph=False)
        return {"loss": exchange.mean((step() + step()) / 2)}

    def optimizers(self, inputs, exchange):
        losses = [self._step(inputs, exchange, optimizer) for optimizer in (0, 1, 0)]
        return {"loss": exchange.mean(losses[2], "gradients")}

    def means(self, inputs, exchange):
        """Average numbers in a loop whose iterations do not depend on each other."""

        def body(i, total):
            return i + 1, total + exchange.mean(tf.random.uniform([], 1.0, 1.0001))

        total = tf.while_loop(lambda i, _: i < 50, body, (0, 0.0))[1]
        return {"count": tf.round(total), "large": exchange.mean(1e5), "whole": exchange.mean(2)}

    def minibatches(self, inputs, exchange, stop_above=None):
        size = inputs.shape[0] // self._num_learners

        def step(columns):
            of_all = [columns + rank * size for rank in range(self._num_learners)]
            loss = self._step(tf.gather(inputs, tf.concat(of_all, 0)), exchange)
            kl = tf.cast(self._steps, tf.float32) + 2.0 * self._learners.rank
            return {"loss": loss, "kl": kl}

        result = exchange.minibatches(step, size, epochs=3, count=2, stop_above=stop_above)
        return {"loss": exchange.mean(result.metrics["loss"]), "steps": result.steps}

    def stopping(self, inputs, exchange):
        """Stop above 4.5; the means of what two learners measure are 2, 3, 4, ..."""
        return self.minibatches(inputs, exchange, stop_above={"kl": 4.5})


def main(folder):
    Agreement(Config()).reach_through_mpi(print)
    learners = group.join_group(Config())
    found = {}

    def train(name, case, settings=WAYS["plain"], imitated=1, **options):
        config = Config(gradients_clipping=0.3, seed=7, **settings)
        joined = group.HorovodGroup(config) if learners.size > 1 else learners
        algorithm = Fitting(case, joined, imitated, **options)
        inputs = tf.constant(INPUTS.reshape(learners.size, -1, 3)[learners.rank])
        batch = Batch(inputs, (), *[tf.ones(len(inputs))] * 4)
        update, metrics, error = TrainStep(algorithm, joined, config, list), {}, ""
        try:
            for number in range(2):
                metrics = update(batch, 0.0, 1.0, 0.0, number).metrics
        except GradientNotFinite as caught:
            error = str(caught)
        variables = np.concatenate([v.numpy().ravel() for v in algorithm.trained]).tolist()
        found[name] = {"metrics": metrics, "variables": variables, "error": error}

    for case in ("cond", "loop", "function", "optimizers"):
        train(case, case)
    train("means", "means", WAYS["halves"])
    imitated = 2 if learners.size == 1 else 1
    for way, settings in WAYS.items():
        train(f"minibatches-{way}", "minibatches", settings, imitated)
    train("bad", "minibatches", imitated=imitated, bad_step=9)
    train("before", "minibatches", imitated=imitated, bad_step=7)
    train("stopping", "stopping", imitated=imitated)
    (folder / f"{learners.rank}.json").write_text(json.dumps(found))
    learners.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
