"""Names of threads for the kernel, which show what uses a process's CPU time.

`top -H -p PID` shows them, and `sandbox/benchmarks/thread_cpu.py` adds up CPU seconds by them. The
kernel does not know the names that Python gives. A thread that a library starts has the name of the
thread that started it.

    environment    an actor: steps the environments in C++
    stepping       an actor with several groups of environments: steps one group
    tf_intra       works within TensorFlow's operations (TensorFlow's other threads: tf_Compute)
    link           an actor: the connection to its learner
    relay          an actor: encrypts what TensorFlow sends, and decrypts what it receives
    playing        an actor without a network (--inference=learner): plays
    prefetch       a learner: takes unrolls from the queue and makes batches of them
    training       a learner: calls the updates
    lockstep       a learner: agrees with the other learners on the next step
    reports        a learner: exchanges status reports with the other learners
    front          a learner: watches the process that other hosts connect to
    gpus           a learner: measures the use of its host's GPUs
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_NAME = Path("/proc/thread-self/comm")  # of the thread that reads or writes it


def name_thread(name: str) -> None:
    """Name the calling thread, in up to 15 letters; do nothing if the kernel has no names."""
    with contextlib.suppress(OSError):
        _NAME.write_text(name[:15])


@contextlib.contextmanager
def threads_named(name: str) -> Iterator[None]:
    """Give this name to all threads that are started within, also to those of libraries."""
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
