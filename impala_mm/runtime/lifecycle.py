"""The start and end of every kind of process: signals, exit codes, limits, loading TensorFlow.

Nothing heavy is imported before it is needed: a mistake in the flags is reported at once.

`name_thread` gives the kernel a thread's name, which shows what uses a process's CPU time: `top -H
-p PID` shows the names, and `sandbox/benchmarks/thread_cpu.py` adds up CPU seconds by them. The
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
import ctypes
import gc
import importlib
import linecache
import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.config.errors import UserMistake

# In the environment of a program that `impala_mm.train` or `launch` has started.
OWNER_VARIABLE = "IMPALA_MM_OWNER"
_NICE = 10
_M_ARENA_MAX = -8  # of glibc's malloc.h
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def handle_end_signals(handler: Any) -> None:
    """Set the handler of SIGINT, SIGTERM, SIGUSR1 and, unless nohup ignores it, SIGHUP."""
    for number in _END_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def remember_end_signals(ending: list[int], told: Callable[[], None] = lambda: None) -> None:
    """Append signals that end the process to `ending`, and call `told`.

    The same signal a second time ends the process at once: it may wait for an environment that
    hangs.
    """

    def remember(number: int, _: Any) -> None:
        if number in ending:
            os._exit(128 + number)  # nothing is flushed: a write may be what hangs
        ending.append(number)
        told()

    handle_end_signals(remember)


def end_with_owner() -> None:
    """Interrupt this process, as Ctrl-C does, once the program that started it from Python is gone.

    That program holds the other end of this process's input, and says so by OWNER_VARIABLE.
    """
    if os.environ.pop(OWNER_VARIABLE, ""):
        threading.Thread(target=_wait_for_owner, name="owner", daemon=True).start()


def _wait_for_owner() -> None:
    while os.read(0, 1024):
        pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # nobody reads them any more
        os.dup2(nowhere, descriptor)
    os.kill(os.getpid(), signal.SIGINT)


def limit_threads_and_memory() -> None:
    """Limit a process that is one of many on its host to few threads and one malloc arena.

    Call it before any thread is started and before NumPy is loaded, which would start a thread for
    each core.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    use_one_malloc_arena()


def use_one_malloc_arena() -> None:
    """Let all threads allocate from one malloc arena; call it before they start.

    With an arena for each thread, glibc keeps freed memory for each of them separately, and the
    process grows.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):  # another libc does not have it
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def raise_file_limit(wanted: int) -> None:
    """Let this process, and those that it starts, open so many files, or as many as they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def lower_priority() -> None:
    """Let the learner and all other programs on this host go first."""
    os.nice(_NICE)
    # A kernel that groups processes by session (autogroup) compares niceness per session.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # it does not group them
            Path("/proc/self/autogroup").write_text(str(_NICE))


def exit_now(code: int) -> NoReturn:
    """Exit now; a normal exit would wait for threads that are blocked in TensorFlow."""
    for stream in (sys.stdout, sys.stderr):
        if stream:  # None if it was closed when Python started
            with contextlib.suppress(OSError):
                stream.flush()
    os._exit(code)


def exit_code(ending: list[int]) -> int:
    """Return the exit code after the signals in `ending`, of which the first counts.

    It is 128 and the signal's number, as in shells (130 after Ctrl-C), and 0 after SIGUSR1, which
    is the request to save and stop.
    """
    return 0 if not ending or ending[0] == signal.SIGUSR1 else 128 + ending[0]


def load_tensorflow(intra: int = 0, inter: int = 0, device: str = "auto") -> None:
    """Load TensorFlow and set its numbers of threads (see `set_thread_counts`).

    With `device` "cpu" all GPUs are hidden, since CUDA takes memory of each GPU that it sees. The
    process is one of ours: its garbage collector need never search what has been loaded so far,
    which would take 0.3 s each time, and 0.5 s at the exit. UserMistake is raised if TensorFlow
    has computed something already.
    """
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import_tensorflow()
    gc.freeze()
    try:
        set_thread_counts(intra, inter)
    except RuntimeError:
        raise UserMistake(
            "a module of yours computes with TensorFlow while it is imported, before the numbers "
            "of threads are set: compute within a function"
        ) from None


def set_thread_counts(intra: int, inter: int) -> None:
    """Set the numbers of threads within an operation and across operations; 0: one for each core.

    RuntimeError is raised if TensorFlow has computed something already.
    """
    import tensorflow as tf  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)


def use_deterministic_operations() -> None:
    """Let TensorFlow compute the same bits each time; call it before it computes anything."""
    import tensorflow as tf  # noqa: PLC0415

    tf.config.experimental.enable_op_determinism()


def end_reason(ending: list[int]) -> str:
    """Return in words why a process ends after the signals in `ending`."""
    if ending[0] == signal.SIGUSR1:
        return "a stop was requested"
    return f"stopped by {signal.Signals(ending[0]).name}"


_NOISE = (b"WARNING: All log messages before absl::InitializeLog", b"I0000 ")


def set_tensorflow_defaults() -> None:
    """Set what TensorFlow reads from the environment when it is imported, unless it is set."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # The default is on only for CPUs with AVX-512; without it, others train convolutions at half
    # the speed.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def import_tensorflow() -> None:
    """Import TensorFlow without Keras, and print what it writes to stderr except for known noise.

    Each process calls it once, after its signal handlers, proxies and thread limits are set.

    TensorFlow imports Keras, which nothing here uses: that takes 46 MiB of each actor and a quarter
    of the import's time. `tf.keras` still loads it when it is first used. The garbage collector,
    which would search what modules hold again and again, waits for the end of the import.
    """
    set_tensorflow_defaults()
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        without_keras = sys.modules.setdefault("keras", None) is None  # type: ignore[arg-type]
        collecting = gc.isenabled()
        gc.disable()
        try:
            importlib.import_module("tensorflow")
        finally:
            if collecting:
                gc.enable()
            if without_keras:
                del sys.modules["keras"]
            linecache.clearcache()  # 6 MiB of source code that TensorFlow's decorators have read
            os.dup2(stderr, 2)
            os.close(stderr)
            printed.seek(0)
            for line in printed:
                if not line.startswith(_NOISE):
                    os.write(2, line)


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
