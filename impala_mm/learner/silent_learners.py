"""The learners that do not answer while the reports of all learners fail to come, for rank 0.

All-reduces and reports wait for every learner and tell nobody which one is missing. `monitor` asks
this before it writes a row of metrics; only then are the other learners called, as actors call
them.
"""

import threading
import time
from collections.abc import Sequence

from impala_mm.runtime import thread_names
from impala_mm.transport.client import Client, Refused, Unreachable

_LATE_SECONDS = 10.0  # without reports, after which the other learners are called
_CALL_SECONDS = 5.0


class SilentLearners:
    """The calls of one learner to the others, and what came of the last ones."""

    def __init__(self, addresses: Sequence[str], rank: int, token: str):
        """Know where all learners listen, by rank; `rank` is the one that calls the others."""
        self._others = {i: address for i, address in enumerate(addresses) if i != rank}
        self._token = token
        self._silent: list[int] = []
        self._calls: threading.Thread | None = None

    def describe(self, reported_at: float) -> str:
        """Return which learners have not answered since the last reports; "" if none is known.

        `reported_at` is the time.monotonic() of these reports. It returns at once; another thread
        calls the learners.
        """
        seconds = time.monotonic() - reported_at
        if seconds < _LATE_SECONDS:
            self._silent = []
            return ""
        if not (self._calls and self._calls.is_alive()):
            self._calls = threading.Thread(target=self._call_all, name="silence", daemon=True)
            self._calls.start()
        silent = self._silent
        if not silent:
            return ""
        ranks, addresses = (
            " and ".join(map(str, each)) for each in (silent, [self._others[i] for i in silent])
        )
        s, has = ("s", "have") if len(silent) > 1 else ("", "has")
        return f"learner{s} {ranks} ({addresses} {has} not answered for {seconds:.0f} s)"

    def _call_all(self) -> None:
        thread_names.name_thread("silence")
        self._silent = [rank for rank, at in self._others.items() if not self._answers(at)]

    def _answers(self, address: str) -> bool:
        try:
            Client(address, self._token, timeout=_CALL_SECONDS).hello({"probe": True})
        except Refused:
            return True
        except Unreachable:
            return False
        return True
