"""What the learners save on another host, brought here again and again (`--mirror_logdir`).

So the loss of that host loses no more than the last moments. A thread of the frontend does what
`fetch` does once; what learners say and measure is copied as it comes, anyway (`state_mirror`).
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping

from launcher.node.callbacks import Say
from launcher.node.run_registry import Record, Run
from launcher.node.task import FINAL_STATES, LEARNERS
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import OperationFailed
from launcher.transfer.copy import TransferResult
from launcher.transfer.fetch import RunFetcher

_PERIOD_SECONDS = 20.0
_LAST_SECONDS = 60.0  # for another that brings the same, at the end


@contextlib.contextmanager
def mirror_folder(wanted: bool, run: Run, hosts: Hosts, record: Record, say: Say) -> Iterator[None]:
    """While a frontend follows a run."""
    if wanted and record.shared:
        say("--mirror_logdir: the learners write to this machine: there is nothing to mirror")
    if not wanted or record.shared:
        yield
        return
    mirror = _FolderMirror(run, hosts, record, say)
    try:
        yield
    finally:
        mirror.stop()


class _FolderMirror:
    """A thread that brings a run home every 20 s; it says only what changes."""

    def __init__(self, run: Run, hosts: Hosts, record: Record, say: Say):
        self._run, self._record, self._say = run, record, say
        self._fetcher = RunFetcher(run, hosts)
        self._failed: dict[str, str] = {}  # host ids, and why
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._fetch_periodically, name="mirror the folder", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Once more, and no more; Ctrl-C leaves out what has not come yet."""
        self._stopping.set()
        if not self._have_learners_ended():  # who left it to itself does not wait
            self._fetcher.close()
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while self._thread.is_alive():
                self._thread.join(0.1)
        except KeyboardInterrupt:
            self._say("the rest of the run's folder stays where it is: --fetch brings it")
        finally:
            signal.signal(signal.SIGINT, handler)
            self._fetcher.close()

    def _fetch_periodically(self) -> None:
        while not self._stopping.wait(_PERIOD_SECONDS):
            self._fetch_once(0.0)
        if self._have_learners_ended():
            self._fetch_once(_LAST_SECONDS)

    def _have_learners_ended(self) -> bool:
        """Whether nothing comes any more."""
        learners = self._run.states().get(LEARNERS, {"state": "lost"})
        return learners["state"] in (*FINAL_STATES, "lost")

    def _fetch_once(self, timeout: float) -> None:
        self._record = self._run.record or self._record  # the learners may have moved
        try:
            with self._fetcher.locked(timeout) as is_locked:
                found = self._fetcher.fetch(self._record) if is_locked else {}
        except Exception as error:  # training goes on, whatever it is
            self._report_changes({"": OperationFailed(f"{type(error).__name__}: {error}")})
            return
        if self._have_learners_ended() or not self._stopping.is_set():
            self._report_changes(found)

    def _report_changes(self, found: Mapping[str, TransferResult | Exception]) -> None:
        for host_id, result in found.items():
            why = str(result) if isinstance(result, Exception) else "; ".join(result.errors)
            if why and self._failed.get(host_id) != why:
                then = (
                    "--fetch brings it"
                    if self._stopping.is_set()
                    else "it is tried again and again"
                )
                self._say(f"mirroring: {why}; {then}")
            elif host_id in self._failed and not why:
                self._say(f"mirroring: all of {host_id or 'it'} is here again")
            self._failed.pop(host_id, None)
            if why:
                self._failed[host_id] = why
