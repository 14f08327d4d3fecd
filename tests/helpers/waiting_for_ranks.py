"""A program of two ranks, for a test: rank 0 prints the CPU time that it uses to wait for rank 1.

`mpirun -np 2 python tests/helpers/waiting_for_ranks.py`: rank 1 initialises MPI 3 s after rank 0,
gathers 3 s later, and finalises MPI another 3 s later.
"""

import time

from impala_mm.distributed import mpi
from impala_mm.runtime import lifecycle
from impala_mm.runtime.starter import process_rank

SECONDS = 3


def main():
    """Initialise, gather and finalise, on rank 1 each time 3 s later."""
    rank, began = process_rank().rank, time.process_time()
    steps = (mpi._initialize, lambda: mpi.gather(rank), mpi.finalize)
    for step in steps:
        time.sleep(SECONDS * rank)
        step()
        if step is not mpi.finalize and rank == 0:
            print(f"waited with {time.process_time() - began:.2f} s of CPU", flush=True)
    lifecycle.exit_now(0)


if __name__ == "__main__":
    main()
