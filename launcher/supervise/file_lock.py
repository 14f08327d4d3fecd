"""A lock between processes of one machine: a locked file, which outlives its holders."""

import fcntl
import os
import time
from pathlib import Path

_RETRY_SECONDS = 0.1


def acquire(path: Path, timeout: float = 0.0) -> int | None:
    """Lock a file and return its descriptor, or None if it stayed locked for `timeout` seconds.

    The file is created if it is missing, and is never removed: another process may wait for it.
    Closing the descriptor releases the lock, as does the end of the process. Raises OSError if the
    file cannot be opened, or its file system has no locks.
    """
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    until = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(lock)
                return None
            time.sleep(_RETRY_SECONDS)
        except OSError as error:  # the file system has no locks
            os.close(lock)
            raise OSError(error.errno, error.strerror, str(path)) from None


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of an existing file."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # or the file system has no locks
        return isinstance(error, BlockingIOError)
    finally:
        os.close(lock)
    return False
