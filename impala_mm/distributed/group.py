"""The group of learners and their communication: the only file that calls Horovod.

A learner process calls `join_group` once. A single learner has rank 0 of 1 and needs neither MPI
nor Horovod; learners that mpirun or horovodrun started communicate through Horovod. `starter` knows
rank and size before anything heavy is imported, from the launcher's environment variables.
"""

import hashlib
import math
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data import variable_names
from impala_mm.distributed import mpi
from impala_mm.runtime.starter import process_rank


class LearnerGroup:
    """The learners of a run, as seen from one of them; this class is the group of a single one.

    Methods with a `name` may be called in any order and from any thread: a call is matched with the
    calls of the same name on the other ranks.
    """

    rank, size = 0, 1

    def mean(
        self, tensors: Sequence[tf.Tensor], name: str, compressed: bool = False
    ) -> list[tf.Tensor]:
        """Return each tensor averaged over learners; usable inside a tf.function.

        Only `compressed` tensors are sent as --gradient_dtype.
        """
        del name, compressed
        return list(tensors)

    def sum(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Return a small tensor summed over learners, never compressed."""
        del name
        return tensor

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Assign rank 0's values to every rank's variables."""

    def gather(self, value: Any, name: str) -> list[Any]:
        """Return the `value` of every rank, in the order of ranks; any picklable object."""
        del name
        return [value]

    def leave(self) -> None:
        """Leave the group; call no other method afterwards."""


class SingleLearner(LearnerGroup):
    """The group of a run with one learner."""


class HorovodGroup(LearnerGroup):
    """The group of a run with several learners, which communicate through Horovod."""

    def __init__(self, config: Config) -> None:
        for name, value in (
            ("HOROVOD_FUSION_THRESHOLD", int(config.fusion_mb * 2**20)),
            ("HOROVOD_CYCLE_TIME", config.cycle_ms),
        ):
            os.environ.setdefault(name, str(value))
        # Horovod need not warn of a learner without unrolls: the progress line reports it.
        os.environ.setdefault("HOROVOD_STALL_CHECK_DISABLE", "1")
        # Not at the top of the file: a single learner must work without Horovod.
        import horovod.tensorflow as hvd  # noqa: PLC0415

        hvd.init()
        self._hvd = hvd
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        halves = config.gradient_dtype == "float16"
        self._compression = hvd.Compression.fp16 if halves else hvd.Compression.none
        self._grouped = config.allreduce == "grouped"
        self._lock, self._graphs = threading.Lock(), dict[str, Any]()

    def mean(
        self, tensors: Sequence[tf.Tensor], name: str, compressed: bool = False
    ) -> list[tf.Tensor]:
        """Return averages: all tensors in one message, or each as soon as it is computed."""
        compression = self._compression if compressed else self._hvd.Compression.none
        options = {"op": self._hvd.Average, "compression": compression}
        if self._grouped:  # a message holds tensors of one dtype
            averages: dict[int, tf.Tensor] = {}
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
                same = [tensors[i] for i in places]
                named = f"{name}.{dtype.name}"
                reduced = self._hvd.grouped_allreduce(same, name=named, **options)
                averages |= dict(zip(places, reduced, strict=True))
            return [averages[i] for i in range(len(tensors))]
        return [
            self._hvd.allreduce(tensor, name=f"{name}.{i}", **options)
            for i, tensor in enumerate(tensors)
        ]

    def sum(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Return the sum, in the tensor's own type."""

        def graph(x: tf.Tensor) -> tf.Tensor:
            return self._hvd.allreduce(x, op=self._hvd.Sum, name=name)

        return self._named(name, graph, tf.TensorSpec(tensor.shape, tensor.dtype))(tensor)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Assign rank 0's values to every rank's variables."""

        # Horovod's own function for variables writes files of AutoGraph to /tmp, which a rank that
        # is killed leaves behind.
        @tf.function(autograph=False)
        def assign() -> None:
            for i, variable in enumerate(variables):
                received = self._hvd.broadcast(variable, root_rank=0, name=f"broadcast.{i}")
                variable.assign(received)

        assign()

    def gather(self, value: Any, name: str) -> list[Any]:
        """Return every rank's value, sent as a pickle."""

        def graph(content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            sizes = self._hvd.allgather(tf.shape(content), name=f"{name}.sizes")
            return sizes, self._hvd.allgather(content, name=name)

        content = tf.constant(np.frombuffer(pickle.dumps(value), np.uint8))
        sizes, contents = self._named(name, graph, tf.TensorSpec([None], tf.uint8))(content)
        ends = np.cumsum(sizes.numpy()).tolist()
        joined = contents.numpy().tobytes()
        begins = [0, *ends[:-1]]
        return [pickle.loads(joined[i:j]) for i, j in zip(begins, ends, strict=True)]

    def _named(self, name: str, graph: Callable[..., Any], spec: tf.TensorSpec) -> Any:
        """Return `graph` as a function that is matched only with calls of its name.

        Eager collectives of one kind all have the same name, so those of two threads would be
        matched with each other.
        """

        def on_cpu(x: tf.Tensor) -> Any:
            with tf.device("/CPU:0"):
                return graph(x)

        with self._lock:
            if name not in self._graphs:
                traced = tf.function(on_cpu, autograph=False)
                self._graphs[name] = traced.get_concrete_function(spec)
            return self._graphs[name]

    def leave(self) -> None:
        """End Horovod and MPI; mpirun regards a rank that exits without it as failed."""
        self._hvd.shutdown()
        mpi.finalize()


def join_group(config: Config) -> LearnerGroup:
    """Return the group of the learners that were started together; exit with code 1 on failure."""
    size = process_rank().size
    if size == 1:
        return SingleLearner()
    try:
        group = HorovodGroup(config)
    except ImportError as error:
        sys.exit(
            f"error: {size} learners were started, and Horovod, which connects them, does not load "
            f"({error}): build it with `{mpi.BUILD_HOROVOD}`, or start one learner"
        )
    if group.size != size:
        sys.exit(
            f"error: the launcher started {size} processes, but Horovod sees {group.size}: "
            f"this mpirun is not the MPI that Horovod was built with "
            f"(`{mpi.BUILD_HOROVOD}`)"
        )
    return group


_ROUNDING = 1e-4  # largest difference due to rounding, relative to a variable's largest value


class VariablesDiffer(Exception):
    """The learners' variables differ by more than rounding; the message names one."""


def check_variables(group: LearnerGroup, variables: Sequence[tf.Variable]) -> int:
    """Set variables that differ to rank 0's values, and return their number.

    Each learner applies the same averaged gradient to equal variables, so they stay equal, bit for
    bit. On hardware that rounds differently, or is faulty, they would drift apart unnoticed.
    `learner` calls this after the same update on all ranks, every --check_sync_every updates. Raise
    VariablesDiffer, on all ranks alike, if one differs by more than rounding.
    """
    values = [variable.numpy() for variable in variables]
    digests = group.gather([hashlib.sha256(v.tobytes()).digest() for v in values], "sync.digests")
    differing = [i for i in range(len(values)) if len({d[i] for d in digests}) > 1]
    if not differing:
        return 0
    theirs = group.gather([values[i] for i in differing] if group.rank == 0 else None, "sync.0")[0]
    distances = [_distance(values[i], right) for i, right in zip(differing, theirs, strict=True)]
    all_distances = group.gather(distances, "sync.distances")
    for place, i in enumerate(differing):
        distance, rank = max((d[place], rank) for rank, d in enumerate(all_distances))
        if distance > _ROUNDING:
            raise VariablesDiffer(
                f"{variable_names.of(variables[i])} of learner {rank} differs from learner 0's by "
                f"{distance:.1g} of its largest value: their updates are not the same"
            )
    for i, right in zip(differing, theirs, strict=True):
        variables[i].assign(right)
    return len(differing)


def _distance(value: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference relative to the largest value of `right`; NaN counts as inf."""
    mine, other = (np.asarray(x, np.float64) for x in (value, right))
    largest = np.abs(other).max(initial=0.0)
    distance = float(np.abs(mine - other).max(initial=0.0) / (largest or 1.0))
    return math.inf if math.isnan(distance) else distance
