"""A learner's place among those that mpirun, horovodrun or srun started together.

Read from the environment, so it is known before TensorFlow is: it says which address of
--learner_hosts is this process's own, which GPU, and how many cores it has to share.
"""

import os
from typing import NamedTuple

# Each launcher tells its processes who they are: Open MPI, horovodrun, MPICH's Hydra, Slurm's PMI.
_OPEN_MPI = "OMPI_COMM_WORLD_"
_TOLD = (
    tuple(f"{_OPEN_MPI}{name}" for name in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")),
    ("HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("PMI_SIZE", "PMI_RANK", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"),
)


class Place(NamedTuple):
    """Of one learner."""

    size: int = 1  # learners
    rank: int = 0
    local_size: int = 1  # of them on this host
    local_rank: int = 0


def place() -> Place:
    """Of this process; the only learner where no launcher says otherwise."""
    for names in _TOLD:
        if all(name in os.environ for name in names) and int(os.environ[names[0]]) > 1:
            return Place(*(int(os.environ[name]) for name in names))
    return Place()


def widen() -> str:
    """Frees a rank that its launcher bound to fewer cores than it is due; what it did, or nothing.

    Open MPI binds each of two ranks to one core: TensorFlow and the callers of the server would
    share it.
    """
    here = place()
    if here.size == 1:
        return ""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel leaves out what is not ours
    free = os.sched_getaffinity(0)
    if len(bound) >= min(len(free), max(2, len(free) // here.local_size)):
        os.sched_setaffinity(0, bound)
        return ""
    return f"was bound to {len(bound)} core(s) by its launcher; it uses all {len(free)}"
