"""Names of threads that the kernel knows, so that anybody can see what takes a process's CPU.

`top -H -p PID` shows them, and `sandbox/benchmarks/thread_cpu.py` adds up CPU seconds by them.
Python's own names stay within Python, and what libraries start is called after the thread that
started it:

    environment    steps the environments in C++                (an actor's)
    stepping       steps a group of environments                (an actor's, where it has several)
    tf_intra       works within TensorFlow's operations         (its other threads: tf_Compute)
    link           an actor's connection to its learner
    playing        an actor's main part, where its learner infers
    prefetch       takes unrolls out of the queue and makes batches of them
    training       calls the updates
    lockstep       agrees on the next step with other learners
    reports        exchanges the learners' status reports
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_NAME = Path("/proc/thread-self/comm")  # of the thread that reads or writes it


def name_thread(name: str) -> None:
    """Of the calling thread, cut to 15 letters; where the kernel has no such file, nothing."""
    with contextlib.suppress(OSError):
        _NAME.write_text(name[:15])


@contextlib.contextmanager
def threads_named(name: str) -> Iterator[None]:
    """Threads that are started within, by whatever library, have this name."""
    try:
        before = _NAME.read_text().rstrip("\n")
    except OSError:
        yield
        return
    name_thread(name)
    try:
        yield
    finally:
        name_thread(before)
