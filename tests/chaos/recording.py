"""IMPALA that records what it trains on: --algorithm=tests.chaos.recording.

Each learner process appends a line to a file of its own in the folder that the environment variable
TRAINED names, for every update, before it is applied. The columns of a line say which steps of
which environments the batch holds, as their observations say (`numbered`).

The lines form chains. A variable that is broadcast and saved with the weights holds the number of
updates, and a hash that each update replaces by one of it and of all learners' batches. So a
checkpoint names the last update that it holds, that update's line names the one before, and so on
to the first: these updates are the checkpoint's history, whatever learners, restarts and counters
say. `checker` reads the files.
"""

import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.impala.algorithm import Impala
from impala_mm.algorithms.interface import DEFAULT_SETUP, Role
from tests.chaos import numbered
from tests.chaos.evidence import MARK

_DIGEST_BITS = 22  # the mean of such numbers of two learners is exact in float32


def make(config, environment, setup=DEFAULT_SETUP):
    algorithm = Impala(config, environment, setup)
    if setup.role is Role.LEARNER:
        _Recording(algorithm)
    return algorithm


class _Recording:
    """The algorithm's update, which is recorded first."""

    def __init__(self, algorithm):
        self._update = algorithm.update
        # int64 [3]: the mark, the number of updates, and the chain after the last of them.
        self._history = tf.Variable([MARK, 0, 0], dtype=tf.int64, trainable=False, name="history")
        variables = algorithm.variables
        algorithm.variables = variables._replace(carried=[*variables.carried, self._history])
        algorithm.update = self
        self._overlap = algorithm.unroll.overlap
        self._columns, self._file = [], None

    def __call__(self, batch, context, exchange):
        unrolls = batch.unrolls
        digest = tf.numpy_function(
            self._see, [unrolls.observation, unrolls.first, batch.version], tf.float32
        )
        mean = exchange.mean(tf.ensure_shape(digest, []), "history")
        group = tf.constant([exchange.group.rank, exchange.group.size])
        following = tf.numpy_function(self._write, [self._history, mean, group], tf.int64)
        assigned = self._history.assign(tf.ensure_shape(following, [3]))
        with tf.control_dependencies([assigned]):
            return self._update(batch, context, exchange)

    def _see(self, observation, first, version):
        """Read the columns of a batch, and return a digest of them."""
        instances, counts = numbered.decode(observation)  # [T+overlap, B]
        self._columns = [
            {
                "instance": int(instance[0]),
                "first": int(count[self._overlap]),
                "last": int(count[-1]),
                "steps": int((~resets[self._overlap :]).sum()),
                "version": int(played),
                "whole": bool((instance == instance[0]).all() and (np.diff(count) == 1).all()),
            }
            for instance, count, resets, played in zip(
                instances.T, counts.T, first.T, version, strict=True
            )
        ]
        return np.float32(_hash(json.dumps(self._columns), _DIGEST_BITS))

    def _write(self, history, mean, group):
        """Write the line of an update, and return the variable's next value."""
        _, updates, before = map(int, history)
        following = [MARK, updates + 1, _hash(f"{updates} {before} {float(mean)}", 62)]
        rank, size = map(int, group)
        line = {"time": time.time(), "rank": rank, "learners": size, "update": updates + 1}
        line |= {"before": before, "after": following[2], "columns": self._columns}
        if self._file is None:
            folder = Path(os.environ["TRAINED"])
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"learner-{rank}-{time.time_ns()}.jsonl").open("ab", 0)
        self._file.write(json.dumps(line).encode() + b"\n")
        return np.array(following, np.int64)


def _hash(text, bits):
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - bits)
