"""A learner's place among those that mpirun, horovodrun or srun started together.

Read from the environment, so it is known before TensorFlow is: it says which address of
--learner_hosts is this process's own, which GPU, and how many cores it has to share.
"""

import os
from typing import NamedTuple

# Each launcher tells its processes who they are: Open MPI, horovodrun, MPICH's Hydra, Slurm's srun.
# How many there are, which one this is; and the same for this host, where it says so.
_VARIABLES = (
    tuple(f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")),
    ("HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"),
)


class ProcessRank(NamedTuple):
    """Of one learner."""

    size: int = 1  # learners
    rank: int = 0
    local_size: int = 1  # of them on this host
    local_rank: int = 0


def process_rank() -> ProcessRank:
    """Of this process; the only learner where no launcher says otherwise."""
    for size, rank, local_size, local_rank in _VARIABLES:
        if size in os.environ and rank in os.environ and int(os.environ[size]) > 1:
            return ProcessRank(
                int(os.environ[size]),
                int(os.environ[rank]),
                int(os.environ.get(local_size, "1")),
                int(os.environ.get(local_rank, "0")),
            )
    return ProcessRank()


def widen_core_binding() -> str:
    """Frees a rank that its launcher bound to a single core; what it did, or nothing.

    Open MPI binds each of two ranks to one core: TensorFlow and the callers of the server would
    share it.
    """
    here = process_rank()
    if here.size == 1:
        return ""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel leaves out what is not ours
    free = os.sched_getaffinity(0)
    if len(bound) > 2 or len(bound) == len(free):  # more than a core's two threads: meant so
        os.sched_setaffinity(0, bound)
        return ""
    return f"was bound to {len(bound)} core(s) by its launcher; it uses all {len(free)}"
