"""The cache in a host's memory by which all actors of a run share each download of parameters.

One actor at a time has the turn: it downloads ("pulls") the parameters and stores them in a folder
that only this user can read; the other actors read them.

    /dev/shm/impala_mm-<uid>-<run>/    mode 0700; its owner is checked
        vector       mode 0600: version, size and time of the pull, then the bytes; replaced as a
                     file
        turn         locked by the actor that pulls
        members      each actor holds a shared lock; an exclusive lock proves that no actor is left
"""

import contextlib
import fcntl
import hashlib
import math
import os
import shutil
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

# Version, bytes; time.monotonic() of the pull, whose clock all processes of a host share.
_HEADER = struct.Struct("<qqd")
SHARED_MEMORY = Path("/dev/shm")


class HostParameterCache:
    """One actor's access to the cache of its host."""

    def __init__(self, run_id: str, shared_memory: Path = SHARED_MEMORY):
        """Join the cache of a run; raise OSError if this host's memory cannot be used."""
        prefix = f"impala_mm-{os.geteuid()}-"
        for old in shared_memory.glob(f"{prefix}*"):
            _remove_if_unused(old)
        # The id comes from the learner. Its hash cannot contain a path to another folder.
        name = prefix + hashlib.sha256(run_id.encode()).hexdigest()[:16]
        self._folder = shared_memory / name
        self._vector = self._folder / "vector"
        self._members = self._join()
        self._turn = os.open(self._folder / "turn", os.O_RDWR | os.O_CREAT, 0o600)

    def newest(self, after: int | None) -> tuple[int, bytes] | None:
        """Return (version, vector) of this host's last pull, if newer than version `after`.

        A damaged file counts as none.
        """
        with contextlib.suppress(FileNotFoundError, struct.error), self._vector.open("rb") as file:
            version, size, _ = _HEADER.unpack(file.read(_HEADER.size))
            if (after is None or version > after) and len(vector := file.read()) == size:
                return version, vector
        return None

    @contextlib.contextmanager
    def pull_turn(self, at_least_secs: float) -> Iterator[bool]:
        """Yield whether this actor may pull: no other is pulling, or has within `at_least_secs`."""
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            # A time in the future is from another container, whose clock differs: ignore it.
            yield not 0 <= time.monotonic() - self._pulled_at() < at_least_secs
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def store(self, version: int, vector: bytes) -> None:
        """Store pulled parameters for the other actors; call it only inside `pull_turn`."""
        work = self._folder / "pulled"
        descriptor = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEADER.pack(version, len(vector), time.monotonic()))
            file.write(vector)
        work.rename(self._vector)

    def close(self) -> None:
        """Leave the cache; the host's last actor of the run removes the folder."""
        os.close(self._turn)
        os.close(self._members)
        _remove_if_unused(self._folder)

    def _pulled_at(self) -> float:
        with contextlib.suppress(FileNotFoundError, struct.error), self._vector.open("rb") as file:
            return _HEADER.unpack(file.read(_HEADER.size))[2]
        return -math.inf

    def _join(self) -> int:
        """Create or find the folder and check it; return the descriptor of this actor's lock."""
        while True:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            try:
                self._check_ours()
                path = self._folder / "members"
                members = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                fcntl.flock(members, fcntl.LOCK_SH)
                if os.fstat(members).st_nlink:  # else another actor has just removed the folder
                    return members
                os.close(members)
            except FileNotFoundError:  # the last other actor has just removed the folder
                continue

    def _check_ours(self) -> None:
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{self._folder} belongs to another user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{self._folder} can be read by others: remove it")


def _remove_if_unused(folder: Path) -> None:
    """Remove a run's folder if none of its actors is left, even if the last one crashed."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return  # another user has made it, and might let this process wait
        members = os.open(folder / "members", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(members, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(members).st_nlink:  # else another process has removed the folder meanwhile
                shutil.rmtree(folder)
        finally:
            os.close(members)
