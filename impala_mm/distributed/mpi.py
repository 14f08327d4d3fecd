"""The MPI world of learners that one mpirun started: the only file that calls mpi4py.

`agreement` compares the learners through it before any of them loads TensorFlow, which takes
seconds. Horovod later uses the MPI that is already initialised, and leaves it to `finalize` to
end it.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from impala_mm.config import flags
from impala_mm.runtime.starter import process_rank

# The command that builds Horovod and installs MPI; an installed package has no Makefile.
_IS_CLONE = (Path(__file__).resolve().parents[2] / "Makefile").exists()
BUILD_HOROVOD = "make horovod" if _IS_CLONE else "impala-mm install-horovod"
_POLL_SECONDS = 0.01


def is_used() -> bool:
    """Return whether this process is one of several learners whose launcher uses MPI."""
    return process_rank().size > 1 and os.environ.get("HOROVOD_CONTROLLER") != "gloo"


def gather(value: Any) -> list[Any]:
    """Return the `value` of every rank, in the order of ranks; any picklable object.

    Call it on all ranks. The first call initialises MPI.
    """
    world = _initialize()
    _wait_for_all(world)
    return world.allgather(value)


def finalize() -> None:
    """Wait for all ranks and finalise MPI, unless mpi4py was not used or MPI is already finalised.

    If a process exits without this call, mpirun regards it as failed and kills the other ones. So a
    process that fails alone must not call it.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi and not mpi.Is_finalized():
        _wait_for_all(mpi.COMM_WORLD)
        mpi.Finalize()


def _initialize() -> Any:
    """Return the communicator of all ranks; exit with code 2 if mpi4py cannot provide it."""
    size = process_rank().size
    # Open MPI's transport for one-sided messages, which neither we nor Horovod send: its search for
    # network cards takes a second of each start.
    os.environ.setdefault("OMPI_MCA_btl", "^ofi")
    try:
        # Not at the top of the file: a single learner needs no MPI.
        import mpi4py  # noqa: PLC0415

        mpi4py.rc.finalize = False  # otherwise its exit would wait for ranks that wait for this one
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        flags.refuse(
            f"{size} learners were started, and mpi4py, through which they compare their settings, "
            f"does not load ({error}): install it with `{BUILD_HOROVOD}`, or start one "
            f"learner"
        )
    if MPI.COMM_WORLD.size != size:
        flags.refuse(
            f"the launcher started {size} processes, but MPI sees {MPI.COMM_WORLD.size}: this "
            f"mpirun does not belong to the MPI that mpi4py loads "
            f"({MPI.Get_library_version().split(',')[0]}); start the learners with that MPI's "
            f"mpirun (`{BUILD_HOROVOD}` installs one)"
        )
    return MPI.COMM_WORLD


def _wait_for_all(world: Any) -> None:
    """Wait, by polling, until every rank calls this; waiting within MPI would keep a core busy."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_SECONDS)
