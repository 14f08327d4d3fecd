"""The newest parameters in shared memory: one pull serves all actors of a run on a host.

`learner_link` asks it before it asks the learner: a few hundred actors that each pulled for
themselves would take the learner's network for the weights alone. Whoever has the turn pulls, and
leaves the vector in a folder of this user's that no other can read; the others read it there.

    /dev/shm/impala_mm-<uid>-<run>/    0700, its owner checked
        vector       0600: version and time of the pull, then the bytes; replaced, never written to
        turn         locked by who pulls
        members      locked, shared, by every actor: who gets it alone is the last, and cleans up
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

_HEADER = struct.Struct("<qd")  # version; time.monotonic() of the pull, the same for a whole host
SHARED_MEMORY = Path("/dev/shm")


class HostParameterCache:
    """One actor's view of the cache; raises OSError where this host's memory cannot be used."""

    def __init__(self, run_id: str, shared_memory: Path = SHARED_MEMORY):
        prefix = f"impala_mm-{os.geteuid()}-"
        for old in shared_memory.glob(f"{prefix}*"):
            _remove_if_unused(old)
        # The id is the learner's word: no path may be made of it.
        name = prefix + hashlib.sha256(run_id.encode()).hexdigest()[:16]
        self._folder = shared_memory / name
        self._vector = self._folder / "vector"
        self._members = self._join()
        self._turn = os.open(self._folder / "turn", os.O_RDWR | os.O_CREAT, 0o600)

    def newest(self, after: int | None) -> tuple[int, bytes] | None:
        """Return (version, vector) as last pulled on this host, if newer than version `after`."""
        with contextlib.suppress(FileNotFoundError), self._vector.open("rb") as file:
            version, _ = _HEADER.unpack(file.read(_HEADER.size))
            if after is None or version > after:
                return version, file.read()
        return None

    @contextlib.contextmanager
    def pull_turn(self, at_least_secs: float) -> Iterator[bool]:
        """Yield whether this actor is to pull: nobody else does, or did in the last seconds."""
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            # A pull that seems to lie ahead is another container's, whose clock began elsewhere.
            yield not 0 <= time.monotonic() - self._pulled_at() < at_least_secs
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def store(self, version: int, vector: bytes) -> None:
        """Store what was pulled, for the others; only in one's turn."""
        work = self._folder / "pulled"
        descriptor = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEADER.pack(version, time.monotonic()))
            file.write(vector)
        work.rename(self._vector)

    def close(self) -> None:
        """Leave the cache; the last actor of the host removes the folder."""
        os.close(self._turn)
        os.close(self._members)
        _remove_if_unused(self._folder)

    def _pulled_at(self) -> float:
        with contextlib.suppress(FileNotFoundError), self._vector.open("rb") as file:
            return _HEADER.unpack(file.read(_HEADER.size))[1]
        return -math.inf

    def _join(self) -> int:
        """Make or find the folder, check that it is ours; return the descriptor that counts us."""
        while True:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            try:
                self._check_ours()
                path = self._folder / "members"
                members = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                fcntl.flock(members, fcntl.LOCK_SH)
                if os.fstat(members).st_nlink:  # else its folder was just taken away
                    return members
                os.close(members)
            except FileNotFoundError:  # the last of those before us left just now
                continue

    def _check_ours(self) -> None:
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{self._folder} is another user's")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{self._folder} can be read by others")


def _remove_if_unused(folder: Path) -> None:
    """Remove a run's folder if no actor of it is left, however the last one ended."""
    with contextlib.suppress(OSError):
        members = os.open(folder / "members", os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(members, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(members)
