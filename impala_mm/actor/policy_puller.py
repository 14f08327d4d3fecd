"""The download of parameters, which all actors of a run on a host share by a cache in memory.

Downloads by a few hundred actors would saturate the learner's network link. So one actor at a time
has the turn: it downloads ("pulls") the parameters and stores them in a folder that only this user
can read; the other actors read them.

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
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from impala_mm.runtime.log import Say
from impala_mm.transport.client import Client

# Version, bytes; time.monotonic() of the pull, whose clock all processes of a host share.
_HEADER = struct.Struct("<qqd")
SHARED_MEMORY = Path("/dev/shm")


class PolicyVersion(NamedTuple):
    """The identity of the policy that acted."""

    run: int  # number of the run whose learners hold it
    version: int


class PulledParameters(NamedTuple):
    """A policy's downloaded parameters."""

    run: int  # number of the run whose learners hold them
    version: int
    vector: bytes

    @property
    def policy(self) -> PolicyVersion:
        """The policy to which these parameters belong."""
        return PolicyVersion(self.run, self.version)


class PolicyPuller:
    """The newest parameters of one actor, and how it gets newer ones."""

    def __init__(self, pull_secs: float, say: Say, stop: threading.Event):
        """Ask learners at most once in `pull_secs`; wait until `stop` at most."""
        self._pull_secs, self._say, self._stop_asked = pull_secs, say, stop
        self._run_id = ""  # the run to which the cache belongs
        self._cache: HostParameterCache | None = None
        self._pulled_at = -math.inf  # when this actor last downloaded from the learner
        self.newest: PulledParameters | None = None

    def join_cache(self, run_id: str) -> None:
        """Join the cache of this run on this host, if its shared memory can be used."""
        if run_id == self._run_id:  # joined before, or found to be unusable
            return
        self.close()
        self._run_id = run_id
        try:
            self._cache = HostParameterCache(run_id)
        except OSError as error:
            self._say_not_shared(error)

    def _say_not_shared(self, error: OSError) -> None:
        self._say(
            f"cannot share parameters with this host's other actors: {error}; from now on it "
            f"downloads them for itself"
        )

    def close(self) -> None:
        """Leave this host's cache, if it was joined."""
        if self._cache:
            self._cache.close()
            self._cache = None

    def pull_any(self, client: Client) -> PulledParameters | None:
        """Return this run's parameters, however old; None while the learner has none."""
        pulled = self._cache.newest(after=None) if self._cache else None
        pulled = pulled or self._pull_from_learner(client, have=None, pull_secs=0.0)
        return self._take(client, pulled)

    def pull_newest(self, client: Client) -> None:
        """Download the newest parameters, if there are newer ones."""
        have = self.newest.version if self.newest else None
        if client.version is not None and (have is None or client.version > have):
            self._pull_for_host(client, client.version, have)

    def pull_exactly(self, client: Client, version: int) -> bool:
        """Pull a version, from this host's cache if it is there; return False if it is gone."""
        pause = 0.0
        while True:
            if self.newest and self.newest.policy == (client.run, version):
                return True
            if self.newest and self.newest.run == client.run and self.newest.version > version:
                return False
            if self._stop_asked.wait(pause):
                return False
            self._pull_for_host(client, version, version - 1)
            pause = 0.002

    def _pull_for_host(self, client: Client, wanted: int, have: int | None) -> None:
        """Pull from this host's cache; if that is stale and it is our turn, from the learner."""
        pulled = self._cache.newest(after=have) if self._cache else None
        if not pulled or pulled[0] < wanted:
            pulled = self._pull_from_learner(client, have, self._pull_secs) or pulled
        self._take(client, pulled)

    def _take(self, client: Client, pulled: tuple[int, bytes] | None) -> PulledParameters | None:
        """Keep what was pulled, if it is newer; return the newest, or None if nothing was."""
        if not pulled:
            return None
        assert client.run is not None
        parameters, newest = PulledParameters(client.run, *pulled), self.newest
        # The cache may still hold an older version than this actor has downloaded for itself.
        if not newest or newest.run != client.run or newest.version < parameters.version:
            self.newest = parameters
        return self.newest

    def _pull_from_learner(
        self, client: Client, have: int | None, pull_secs: float
    ) -> tuple[int, bytes] | None:
        """Pull and share the result on this host; return None if it is not our turn."""
        if time.monotonic() - self._pulled_at < pull_secs:
            return None
        if self._cache is None:
            self._pulled_at = time.monotonic()
            return client.get_parameters()
        pulled = None
        try:
            with self._cache.pull_turn(pull_secs) as ours:
                if not ours:
                    return None
                pulled = self._cache.newest(after=have)  # another actor may have had its turn
                if pulled and (client.version is None or pulled[0] >= client.version):
                    return pulled
                self._pulled_at = time.monotonic()
                pulled = client.get_parameters()
                if pulled:
                    self._cache.store(*pulled)
        except OSError as error:  # such as shared memory that is too small
            self._say_not_shared(error)
            self.close()
        return pulled


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
                if os.fstat(
                    members
                ).st_nlink:  # otherwise another actor has just removed the folder
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
