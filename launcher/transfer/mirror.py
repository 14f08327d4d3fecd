"""What the learners save on another host, brought here again and again (`--mirror_logdir`).

So the loss of that host loses no more than the last moments. A thread of the frontend does what
`fetch` does once; what learners say and measure is copied as it comes, anyway (`mirror`).
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping

from launcher.node.run_registry import Record, Run
from launcher.node.task import FINAL, LEARNERS
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import Failed
from launcher.transfer.copy import Brought
from launcher.transfer.fetch import Home, Say

_EVERY_SECONDS = 20.0
_LAST_SECONDS = 60.0  # for another that brings the same, at the end


@contextlib.contextmanager
def during(wanted: bool, run: Run, hosts: Hosts, record: Record, say: Say) -> Iterator[None]:
    """While a frontend follows a run."""
    if wanted and record.shared:
        say("--mirror_logdir: the learners write to this machine: there is nothing to mirror")
    if not wanted or record.shared:
        yield
        return
    mirror = _Mirroring(run, hosts, record, say)
    try:
        yield
    finally:
        mirror.end()


class _Mirroring:
    """A thread that brings a run home every 20 s; it says only what changes."""

    def __init__(self, run: Run, hosts: Hosts, record: Record, say: Say):
        self._run, self._record, self._say = run, record, say
        self._home = Home(run, hosts)
        self._failed: dict[str, str] = {}  # places, and why
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="mirror the folder", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Once more, and no more; Ctrl-C leaves out what has not come yet."""
        self._over.set()
        if not self._is_last():  # who left it to itself does not wait
            self._home.close()
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while self._thread.is_alive():
                self._thread.join(0.1)
        except KeyboardInterrupt:
            self._say("the rest of the run's folder stays where it is: --fetch brings it")
        finally:
            signal.signal(signal.SIGINT, handler)
            self._home.close()

    def _go_on(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            self._once(0.0)
        if self._is_last():
            self._once(_LAST_SECONDS)

    def _is_last(self) -> bool:
        """Whether nothing comes any more."""
        learners = self._run.states().get(LEARNERS, {"state": "lost"})
        return learners["state"] in (*FINAL, "lost")

    def _once(self, patience: float) -> None:
        self._record = self._run.record or self._record  # the learners may have moved
        try:
            with self._home.alone(patience) as alone:
                found = self._home.bring(self._record) if alone else {}
        except Exception as error:  # training goes on, whatever it is
            self._tell({"": Failed(f"{type(error).__name__}: {error}")})
            return
        if self._is_last() or not self._over.is_set():
            self._tell(found)

    def _tell(self, found: Mapping[str, Brought | Exception]) -> None:
        for place, result in found.items():
            why = str(result) if isinstance(result, Exception) else "; ".join(result.wrong)
            if why and self._failed.get(place) != why:
                then = "--fetch brings it" if self._over.is_set() else "it is tried again and again"
                self._say(f"mirroring: {why}; {then}")
            elif place in self._failed and not why:
                self._say(f"mirroring: all of {place or 'it'} is here again")
            self._failed.pop(place, None)
            if why:
                self._failed[place] = why
