"""How learners act as one: gradients averaged, flags compared, all through this file.

A learner process asks `join()` once for its Exchange. Alone, it has rank 0 of 1 and needs neither
MPI nor Horovod; started by mpirun or horovodrun, it reaches the other learners through Horovod.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import sonnet as snt
import tensorflow as tf

# Each launcher tells its processes how many they are: Open MPI, MPICH and Slurm's PMI, horovodrun.
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")


class Exchange(Protocol):
    """What a learner may ask of all learners together. Every rank makes the same calls in order."""

    rank: int
    size: int

    def mean(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Each tensor averaged over learners; usable inside a tf.function."""

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Rank 0's values into every rank's variables."""

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, in the order of ranks; any picklable object."""


class Alone:
    """The only learner."""

    rank, size = 0, 1

    def mean(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """The tensors themselves."""
        del name
        return list(tensors)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Nothing to do."""

    def gather(self, value: Any) -> list[Any]:
        """This rank's value."""
        return [value]


class Horovod:
    """One of several learners."""

    def __init__(self) -> None:
        # Not at the top: one learner works where Horovod could not be built.
        import horovod.tensorflow as hvd  # noqa: PLC0415

        hvd.init()
        self._hvd = hvd
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def mean(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """One grouped all-reduce: all tensors travel together."""
        return self._hvd.grouped_allreduce(list(tensors), op=self._hvd.Average, name=name)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Rank 0's values into every rank's variables."""
        self._hvd.broadcast_variables(list(variables), root_rank=0)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, pickled and gathered."""
        return self._hvd.allgather_object(value)


def join() -> Exchange:
    """This process's place among the learners that were started together."""
    size = max(int(os.environ.get(variable, "1")) for variable in _SIZE_VARIABLES)
    if size == 1:
        return Alone()
    try:
        exchange = Horovod()
    except ImportError as error:
        sys.exit(
            f"error: {size} learners were started, and Horovod, which joins them, does not load "
            f"({error}): build it with `make horovod`, or start one learner"
        )
    if exchange.size != size:
        sys.exit(
            f"error: the launcher started {size} processes, but Horovod sees {exchange.size}: "
            f"this mpirun is not the MPI that Horovod was built with (`make horovod`)"
        )
    return exchange


def apply(
    exchange: Exchange,
    optimizer: snt.Optimizer,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[tf.Variable],
    clipping: float,
) -> tf.Tensor:
    """Averages the gradients over learners, then clips, then applies; the norm before clipping.

    In this order every learner clips the same gradient by the same factor, so that equal variables
    stay equal. `clipping` is the largest global norm; negative means off.
    """
    reduced = exchange.mean(gradients, name="gradients")
    norm = tf.linalg.global_norm(reduced)
    if clipping >= 0:
        reduced, _ = tf.clip_by_global_norm(reduced, clipping, use_norm=norm)
    optimizer.apply(reduced, variables)
    return norm
