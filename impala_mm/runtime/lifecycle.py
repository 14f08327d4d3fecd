"""How all kinds of processes start and end: signals, exit codes, limits, TensorFlow's start.

Nothing heavy is imported before it is needed: a child's parent must be known to be alive, and a
learner's actors started, in the first tenths of a second.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.runtime import tensorflow_import

_NICE = 10
_M_ARENA_MAX = -8  # of glibc's malloc.h
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def handle_end_signals(handler: Any) -> None:
    """What SIGINT, SIGTERM, SIGUSR1 and, but under nohup, SIGHUP do."""
    for number in _END_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def limit_threads_and_memory() -> None:
    """For who is one of many on its host; before NumPy is loaded, which would start a thread for
    each core, and before threads are started.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    use_one_malloc_arena()


def use_one_malloc_arena() -> None:
    """All threads to come get theirs of one place: glibc would keep what is freed for each of them
    apart, ever more of it.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):  # another libc has it not
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def lower_priority() -> None:
    """To the learner beside it, and to whoever else computes here."""
    os.nice(_NICE)
    # Where the kernel shares out time by session, and not by process, that is said by session.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # it does not
            Path("/proc/self/autogroup").write_text(str(_NICE))


def exit_now(code: int) -> NoReturn:
    """Ends now: threads that wait in TensorFlow for others would hold a slower end up."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def exit_code(ending: list[int]) -> int:
    """As shells have it: 130 after Ctrl-C. SIGUSR1 is the order to save and stop: all is well."""
    return 0 if not ending or ending[0] == signal.SIGUSR1 else 128 + ending[0]


def load_tensorflow(intra: int = 0, inter: int = 0, device: str = "auto") -> None:
    """With threads as `set_thread_counts` has them.

    Who computes on the cpu sees no GPU: CUDA itself takes memory of all that it sees.
    """
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tensorflow_import.load()
    set_thread_counts(intra, inter)


def set_thread_counts(intra: int, inter: int) -> None:
    """So many threads within an operation and across them, 0: all cores; before any computes."""
    import tensorflow as tf  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
