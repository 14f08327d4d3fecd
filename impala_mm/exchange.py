"""How learners act as one: gradients averaged, flags compared, all through this file.

A learner process asks `join()` once for its group. Alone, it has rank 0 of 1 and needs neither MPI
nor Horovod; started by mpirun or horovodrun, it reaches the other learners through Horovod. An
algorithm's update sees the group through an Exchange.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import sonnet as snt
import tensorflow as tf

# Each launcher tells its processes how many they are: Open MPI, MPICH and Slurm's PMI, horovodrun.
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")


class Group(Protocol):
    """The learners of a run, seen from one of them. All make the same calls in the same order."""

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


class Applied(NamedTuple):
    """What became of a gradient."""

    norm: tf.Tensor  # float32 []: global norm of the averaged gradient, before clipping
    clipped: tf.Tensor  # float32 []: 1 where clipping changed it, else 0


class Exchange:
    """What an algorithm's update may ask of all learners: average, and apply gradients as one."""

    def __init__(self, group: Group, clipping: float, mode: str):
        self.group = group
        self._clipping = clipping  # negative: off
        self._mode = mode  # "global_norm", "variable_norm" or "value"

    def mean(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """A tensor averaged over learners; `name` must be its own within an update."""
        return self.group.mean([tensor], name)[0]

    def apply(
        self,
        optimizer: snt.Optimizer,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
        name: str = "gradients",
    ) -> Applied:
        """Averages the gradients over learners, then clips, then applies them.

        In this order every learner clips the same gradient by the same factor, so that equal
        variables stay equal. A gradient that is not finite is applied nowhere.
        """
        reduced = self.group.mean(gradients, name)
        norm = tf.linalg.global_norm(reduced)
        clipped, changed = self._clip(reduced, norm)

        def step() -> tf.Tensor:
            optimizer.apply(clipped, variables)
            return tf.constant(True)

        tf.cond(tf.math.is_finite(norm), step, lambda: tf.constant(False))
        return Applied(norm, tf.cast(changed, tf.float32))

    def _clip(
        self, gradients: Sequence[tf.Tensor], norm: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """(clipped gradients, whether any of them changed)."""
        limit = self._clipping
        if limit < 0:
            return list(gradients), tf.constant(False)
        if self._mode == "global_norm":
            return tf.clip_by_global_norm(gradients, limit, use_norm=norm)[0], norm > limit
        if self._mode == "variable_norm":
            changed = [tf.norm(g) > limit for g in gradients]
            return [tf.clip_by_norm(g, limit) for g in gradients], tf.reduce_any(changed)
        changed = [tf.reduce_any(tf.abs(g) > limit) for g in gradients]
        return [tf.clip_by_value(g, -limit, limit) for g in gradients], tf.reduce_any(changed)


def join() -> Group:
    """This process's place among the learners that were started together."""
    size = max(int(os.environ.get(variable, "1")) for variable in _SIZE_VARIABLES)
    if size == 1:
        return Alone()
    try:
        group = Horovod()
    except ImportError as error:
        sys.exit(
            f"error: {size} learners were started, and Horovod, which joins them, does not load "
            f"({error}): build it with `make horovod`, or start one learner"
        )
    if group.size != size:
        sys.exit(
            f"error: the launcher started {size} processes, but Horovod sees {group.size}: "
            f"this mpirun is not the MPI that Horovod was built with (`make horovod`)"
        )
    return group
