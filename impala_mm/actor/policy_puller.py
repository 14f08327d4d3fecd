"""The download of parameters: once for all actors of a run on a host, which share it.

Downloads by a few hundred actors would saturate the learner's network link.
"""

import math
import threading
import time
from typing import NamedTuple

from impala_mm.actor.host_cache import HostParameterCache
from impala_mm.runtime.log import Say
from impala_mm.transport.client import Client


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
