"""The environment variables that tell a process how it was started, and beside which others.

`jobs.local_run` sets those of this package for a run on this machine, and the launcher for one on
the hosts of a CSV (`launcher.supervise.task` has the same names). Processes started by hand
have none of them. mpirun, horovodrun or srun set a learner's place among all: it is known before
anything is imported, with MPI or without, and decides which address of --learner_hosts is this
process's own, which GPU it takes, and with how many learners it shares the host's cores.
"""

import os
import re
import shlex
import socket
import sys
from typing import NamedTuple

from impala_mm.config.settings import Config

# In the environment of processes that `experiment.py` started on this machine: the user's command.
COMMAND_VARIABLE = "IMPALA_MM_COMMAND"
# In the environment of learners and actors that one program started together: an id of this start.
START_VARIABLE = "IMPALA_MM_START"
# In the environment of learners that one program started with actors: the number of the actors.
ACTORS_VARIABLE = "IMPALA_MM_ACTORS"
# In the environment of processes that the launcher started: the name of their host in the CSV.
HOST_NAME_VARIABLE = "IMPALA_MM_HOST"


def command() -> str:
    """Return the command by which the user started this process, or the run on this machine."""
    return os.environ.get(COMMAND_VARIABLE) or shlex.join(["python", *sys.argv])


def is_local_run() -> bool:
    """Return whether `experiment.py` started this process, with all others on this machine."""
    return COMMAND_VARIABLE in os.environ


def start_id() -> str:
    """Return the id of the start to which this process belongs; empty if it was started by hand."""
    return os.environ.get(START_VARIABLE, "")


def host_name() -> str:
    """Return the name of this host in the CSV; of a process that was started by hand, its own."""
    return os.environ.get(HOST_NAME_VARIABLE) or socket.gethostname()


def num_actors() -> int | None:
    """Return the number of actors that were started with this learner; None if it is not known."""
    text = os.environ.get(ACTORS_VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) else None


def ends_offline(config: Config) -> bool:
    """Return whether the run ends after its updates from recorded games: it has no actors."""
    has_no_actors = config.num_actors == 0 or os.environ.get(ACTORS_VARIABLE) == "0"
    return has_no_actors and config.planned_offline_updates > 0


# The variables of each launcher: Open MPI, horovodrun, MPICH's Hydra, Slurm's srun. They hold the
# number of processes and this one's rank, and the same within its host if the launcher sets them.
_VARIABLES = (
    tuple(f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")),
    ("HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"),
)


class ProcessRank(NamedTuple):
    """The place of one learner among all, and among those on its host."""

    size: int = 1  # learners
    rank: int = 0
    local_size: int = 1  # learners on this host
    local_rank: int = 0


def process_rank() -> ProcessRank:
    """Return this process's place; without a launcher it is the only learner."""
    for size, rank, local_size, local_rank in _VARIABLES:
        if size in os.environ and rank in os.environ and int(os.environ[size]) > 1:
            return ProcessRank(
                int(os.environ[size]),
                int(os.environ[rank]),
                _local_size(os.environ.get(local_size, "1")),
                int(os.environ.get(local_rank, "0")),
            )
    return ProcessRank()


def _local_size(text: str) -> int:
    """Return the learners on this host: a number, or by node as Slurm writes it, as in 2(x3),1."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    counts = [int(count) for count, nodes in parts for _ in range(int(nodes or 1))]
    node = int(os.environ.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else max(counts)


def widen_core_binding() -> str:
    """Let a rank that its launcher bound to one core use all; return what was done, or "".

    Open MPI binds each of two ranks to one core, which TensorFlow and the server's threads would
    have to share.
    """
    here = process_rank()
    if here.size == 1:
        return ""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel ignores others' cores
    free = os.sched_getaffinity(0)
    if len(bound) > 2 or len(bound) == len(free):  # more than a core's two threads: intended
        os.sched_setaffinity(0, bound)
        return ""
    return f"was bound to {len(bound)} core(s) by its launcher; it uses all {len(free)}"
