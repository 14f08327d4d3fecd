"""`--mirror_logdir`: downloads the learners' folder periodically while a frontend follows the run.

If the learners' host is lost, only the last seconds of training are lost with it. A thread of the
frontend repeats what `fetch` does once. `state_mirror` copies the learners' log and metrics in any
case, as they are written.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping

from launcher.hosts.copy import TransferResult
from launcher.hosts.fetch import RunFetcher
from launcher.hosts.hosts import Hosts
from launcher.hosts.remote_node import OperationFailed
from launcher.supervise.callbacks import Say
from launcher.supervise.run_registry import Record, Run
from launcher.supervise.task import LEARNERS

_PERIOD_SECONDS = 20.0
_LAST_SECONDS = 60.0  # at the end: seconds to wait for another frontend that downloads the same


@contextlib.contextmanager
def mirror_folder(wanted: bool, run: Run, hosts: Hosts, say: Say) -> Iterator[None]:
    """Mirror the run's folder for the time of a `with` block, if it is `wanted`."""
    record = run.record
    if wanted and record and record.shared:
        say("--mirror_logdir: nothing to mirror, as the learners write to this machine")
    if not wanted or not record or record.shared:
        yield
        return
    mirror = _FolderMirror(run, hosts, record, say)
    try:
        yield
    finally:
        mirror.stop()


class _FolderMirror:
    """A thread that downloads a run's folder every 20 s; it reports only changes."""

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
        """Download once more if the learners have ended, then stop; Ctrl-C skips the rest."""
        self._stopping.set()
        if not self._have_learners_ended():  # the user detached: do not wait for a transfer
            self._fetcher.close()
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while self._thread.is_alive():
                self._thread.join(0.1)
        except KeyboardInterrupt:
            self._say("mirroring was interrupted: --fetch downloads the rest of the run's folder")
        finally:
            signal.signal(signal.SIGINT, handler)
            self._fetcher.close()

    def _fetch_periodically(self) -> None:
        while not self._stopping.wait(_PERIOD_SECONDS):
            self._fetch_once(0.0)
        if self._have_learners_ended():
            self._fetch_once(_LAST_SECONDS)

    def _have_learners_ended(self) -> bool:
        """Return whether the learners have ended, so that no new files will be written."""
        return self._run.state_of(LEARNERS).has_ended

    def _fetch_once(self, timeout: float) -> None:
        self._record = self._run.record or self._record  # the learners may have moved
        try:
            with self._fetcher.locked(timeout) as is_locked:
                found = self._fetcher.fetch(self._record) if is_locked else {}
        except Exception as error:  # an error of the mirror must not end the run
            self._report_changes({"": OperationFailed(f"{type(error).__name__}: {error}")})
            return
        if self._have_learners_ended() or not self._stopping.is_set():
            self._report_changes(found)

    def _report_changes(self, found: Mapping[str, TransferResult | Exception]) -> None:
        for host_id, result in found.items():
            why = str(result) if isinstance(result, Exception) else "; ".join(result.errors)
            if why and self._failed.get(host_id) != why:
                then = (
                    "--fetch downloads the rest"
                    if self._stopping.is_set()
                    else f"retry in {_PERIOD_SECONDS:g} s"
                )
                self._say(f"mirroring failed: {why}; {then}")
            elif host_id in self._failed and not why:
                what = f"the copy of {host_id}'s files" if host_id else "the copy"
                self._say(f"mirroring works again: {what} is up to date")
            self._failed.pop(host_id, None)
            if why:
                self._failed[host_id] = why
