"""Downloads the learners' folder and the logs of all hosts to the run's folder on this machine.

    fetch_run     downloads once, for `--fetch`; `mirror` does the same periodically
    push_folder   uploads the run's folder to a host on which the learners will resume

`state_mirror` copies the learners' log and metrics as they are written; both may write the same
bytes at the same place. A lock prevents two downloads of one run at the same time.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from impala_mm.runtime.timing import format_duration
from launcher.hosts.checkpoints import (
    are_taken,
    checkpoint_path,
    copy_checkpoints,
    has_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    split_offers,
)
from launcher.hosts.copy import (
    LINK,
    FolderCopy,
    OfferedFile,
    TransferResult,
    TransferState,
    list_offers,
)
from launcher.hosts.hosts import Hosts
from launcher.hosts.progress_line import ProgressLine
from launcher.hosts.remote_files import FileStore, RemoteFiles
from launcher.hosts.remote_node import OperationFailed
from launcher.supervise import file_lock
from launcher.supervise.callbacks import Say
from launcher.supervise.file_service import LocalFiles
from launcher.supervise.run_registry import ProcessEntry, Record, Run, runs_folder
from launcher.supervise.task import LEARNERS

_WAIT_SECONDS = 600.0  # timeout for another download of the same run to finish
_TRIES = 3  # attempts for files that change while they are read
_MAX_LISTED = 10  # hosts that get a line of their own in the summary
_STATE_FILE = ".brought.json"  # in the run's folder
OnProgress = Callable[[int, int], None]


class TransferProgress:
    """The progress of a transfer: bytes, throughput and ETA. Several threads may call it."""

    def __init__(self, direction: str, say: Say):
        """Start the clock; `direction` begins the line: "download" or "upload"."""
        self._direction, self._line = direction, ProgressLine(say)
        self._total_bytes = self._done_bytes = 0
        self._adding = threading.Lock()

    def add(self, more: int, done: int) -> None:
        """Add `more` bytes to the total and `done` bytes to those that were transferred."""
        with self._adding:
            self._total_bytes += more
            self._done_bytes += done
            self._line.update(self._describe)

    def _describe(self, seconds: float) -> str:
        done, total = self._done_bytes, self._total_bytes
        line = f"{self._direction}: {done / 1e6:.1f} of {total / 1e6:.1f} MB"
        if not done or seconds <= 0:
            return line
        rate = done / seconds
        return f"{line}, {rate / 1e6:.1f} MB/s, ETA {format_duration((total - done) / rate)}"

    def clear(self) -> None:
        """Clear the line on a terminal, before something else is printed."""
        self._line.clear()


class RunFetcher:
    """Downloads a run's files from other hosts to its folder on this machine."""

    def __init__(
        self, run: Run, hosts: Hosts, tries: int = 1, on_progress: OnProgress | None = None
    ):
        """Prepare the downloads.

        `tries`: attempts for files that change while they are read. `on_progress`: see
        `FolderCopy`.
        """
        self._run, self._hosts = run, hosts
        self._tries, self._on_progress = tries, on_progress
        self._stores: dict[str, RemoteFiles] = {}

    def fetch(self, record: Record) -> dict[str, TransferResult | Exception]:
        """Download from every host that has files of the run; return the result or the error."""
        state = TransferState.read(Path(record.logdir) / _STATE_FILE)
        host_ids = source_host_ids(record)

        def fetch_one(host_id: str) -> TransferResult:
            try:
                return self._fetch_from(record, host_id, state)
            except OSError as error:
                path = error.filename or record.logdir
                raise OperationFailed(f"{path}: {error.strerror or error}") from None

        found = self._hosts.for_each(fetch_one, host_ids)
        return {host_id: found[host_id] for host_id in host_ids}

    def close(self) -> None:
        """Close the connections; a download in progress fails."""
        for end in self._stores.values():
            end.close()

    @contextlib.contextmanager
    def locked(self, seconds: float) -> Iterator[bool]:
        """Hold the lock of the run's downloads for the time of a `with` block.

        Yield False if another process still held it after `seconds`.
        """
        runs_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = file_lock.acquire(runs_folder() / f"{self._run.name}.fetch.lock", seconds)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def _fetch_from(self, record: Record, host_id: str, state: TransferState) -> TransferResult:
        source = self._store(host_id)
        copy = FolderCopy(source, host_id, LocalFiles(), record.logdir, state, self._on_progress)
        has_folder = not record.shared and host_id == record.host_id_of(LEARNERS)
        for _ in range(self._tries):
            copy.result.changed.clear()
            offers = list_offers(source, record.flags["logdir"]) if has_folder else {}
            copy_all(copy, offers | _list_log_offers(source, record, host_id))
            if has_folder:
                prune_checkpoints(copy, split_offers(offers)[1])
            if not copy.result.changed:
                break
        return copy.result

    def _store(self, host_id: str) -> FileStore:
        if not host_id:
            return LocalFiles()
        if host_id not in self._stores:
            self._stores[host_id] = RemoteFiles(self._hosts.remote_nodes[host_id])
        return self._stores[host_id]


def fetch_run(run: Run, hosts: Hosts, record: Record, say: Say) -> int:
    """Download everything once, print a summary, and return the exit code."""
    if not source_host_ids(record):
        say(
            f"nothing to download: all files of {record.name} are on this machine; "
            f"results: {record.logdir}"
        )
        return 0
    progress = TransferProgress("download", say)
    fetcher = RunFetcher(run, hosts, _TRIES, progress.add)
    started = time.monotonic()
    try:
        with fetcher.locked(0.0) as is_locked:
            pass
        if not is_locked:
            say(
                f"waiting up to {_WAIT_SECONDS:g} s for another frontend that downloads the same "
                f"files"
            )
        with fetcher.locked(_WAIT_SECONDS) as is_locked:
            if not is_locked:
                raise OperationFailed(
                    f"another download of {record.name} has not finished within "
                    f"{_WAIT_SECONDS:g} s: end it, or try again later"
                )
            found = fetcher.fetch(record)
    finally:
        fetcher.close()
        progress.clear()
    lines, failures = _summarize(found)
    for line in [*lines, *(f"error: {failure}" for failure in failures)]:
        say(line)
    seconds = time.monotonic() - started
    extent = "incomplete" if failures else "complete"
    say(f"download {extent} after {seconds:.1f} s; results: {record.logdir}")
    return int(bool(failures))


def restore_if_missing(
    hosts: Hosts, host_id: str, local_folder: Path, remote_folder: str, say: Say
) -> bool:
    """Upload the run's folder to a host whose checkpoints of it are older, or that has none.

    Where those here are another run's (`are_taken`), the host's are removed before. Return whether
    it was uploaded. Raises HostUnavailable, OperationFailed, OSError.
    """
    if not has_checkpoint(local_folder):
        return False
    with contextlib.closing(RemoteFiles(hosts.remote_nodes[host_id])) as store:
        if are_taken(store, remote_folder, local_folder):
            store.remove(f"{remote_folder}/{checkpoint_path('')}")
        elif newest_checkpoint(store, remote_folder) >= newest_checkpoint(
            LocalFiles(), str(local_folder)
        ):
            return False
    push_folder(hosts, host_id, local_folder, remote_folder, say)
    return True


def push_folder(
    hosts: Hosts, host_id: str, local_folder: Path, remote_folder: str, say: Say
) -> TransferResult:
    """Upload a folder to a host, as far as its files are missing there or differ.

    Raises HostUnavailable, OperationFailed, OSError.
    """
    source, store = LocalFiles(), RemoteFiles(hosts.remote_nodes[host_id])
    progress = TransferProgress("upload", say)
    copy = FolderCopy(source, "", store, remote_folder, TransferState(), progress.add)
    try:
        copy_all(copy, list_offers(source, str(local_folder)))
    finally:
        store.close()
        progress.clear()
    if copy.result.errors:
        raise OperationFailed("; ".join(copy.result.errors))
    return copy.result


def source_host_ids(record: Record) -> list[str]:
    """Return the hosts that have files of a run which are not in its folder on this machine."""
    found = {
        process.place for process in record.processes if not _is_log_in_folder(process, record)
    }
    if not record.shared:
        found.add(record.host_id_of(LEARNERS))
    return sorted(found)


def _is_log_in_folder(process: ProcessEntry, record: Record) -> bool:
    """Return whether a process writes its log into the learners' folder."""
    host_id, log = record.host_id_of(LEARNERS), Path(process.log)
    return process.place == host_id and log.is_relative_to(record.flags["logdir"])


def copy_all(copy: FolderCopy, offers: dict[str, OfferedFile]) -> None:
    """Copy all offered files: first logs and metrics, which are short, then the checkpoints.

    What would leave the copy's folder is not copied; the result's errors name it.
    """
    others, checkpoints = split_offers(copy.accept(offers))
    copy.remove_stale_partials({*others, *map(checkpoint_path, checkpoints)})
    copy.copy_files(others)
    copy_checkpoints(copy, checkpoints)


def _list_log_offers(source: FileStore, record: Record, host_id: str) -> dict[str, OfferedFile]:
    """Return the logs on a host that are not in the learners' folder, by name."""
    paths = {}
    for process in record.processes:
        if process.place == host_id and not _is_log_in_folder(process, record):
            for end in ("", ".1"):
                paths[f"{process.name}.log{end}"] = f"{process.log}{end}"
    infos = source.file_infos(list(paths.values()))
    return {
        name: OfferedFile(path, info)
        for (name, path), info in zip(paths.items(), infos, strict=True)
        if info and not info[LINK]
    }


def _summarize(found: Mapping[str, TransferResult | Exception]) -> tuple[list[str], list[str]]:
    """Return a line for each host, and the messages of failures."""
    lines, rest = [], TransferResult()
    failures = [str(each) for each in found.values() if isinstance(each, Exception)]
    results = {
        p or "this machine": each for p, each in found.items() if isinstance(each, TransferResult)
    }
    for host_id, each in results.items():
        failures += [f"{host_id}: {sentence}" for sentence in each.errors]
        failures += [
            f"{host_id}: {name} was not copied: it changed while it was read; try again"
            for name in each.changed
        ]
    order = sorted(
        (p for p in results if results[p].bytes), key=lambda p: results[p].bytes, reverse=True
    )
    for host_id in order[:_MAX_LISTED]:
        lines.append(f"{host_id}: {_describe_amount(results[host_id])}")
    for host_id in order[_MAX_LISTED:]:
        rest.bytes += results[host_id].bytes
        rest.files += results[host_id].files
    if order[_MAX_LISTED:]:
        others = len(order) - _MAX_LISTED
        lines.append(f"{others} other host{'s' * (others > 1)}: {_describe_amount(rest)}")
    if unchanged := len(results) - len(order):
        lines.append(f"{unchanged} host{'s' * (unchanged > 1)}: nothing new")
    return lines, failures


def _describe_amount(result: TransferResult) -> str:
    parts = [f"{result.bytes / 1e6:.1f} MB"]
    if result.files:
        parts.append(f"{result.files} file{'s' * (result.files > 1)}")
    if result.checkpoints:
        parts.append(f"{result.checkpoints} checkpoint{'s' * (result.checkpoints > 1)}")
    return ", ".join(parts)
