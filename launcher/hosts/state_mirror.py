"""Copies states and logs from other hosts to the frontend's machine while they are connected.

The states of remote processes are written to the run's state folder, the learners' log and rows
to the run's folder. Every reader of a run uses these files, wherever its processes run.
"""

import base64
import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.hosts.hosts import Hosts
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.supervise.json_files import file_size, write_json
from launcher.supervise.process_state import State, parse_state, read_state
from launcher.supervise.run_registry import Run


class StateMirror:
    """The copies of one run; the threads of the hosts' connections call it."""

    def __init__(self, run: Run, hosts: Hosts, files: Mapping[str, Mapping[str, Path]]):
        """Prepare the copies; `files` maps host id and path on that host to the copy's path."""
        self._run, self._hosts, self._files = run, hosts, files
        self._writing = threading.Lock()
        self._following_again: set[str] = set()  # hosts that were asked to resend a file
        # What each host has reported, by its id and by process; before, it ignores requests.
        self.reported: dict[str, dict[str, State]] = {}

    def on_states(self, host_id: str, states: dict[str, Any], all_states: bool = False) -> None:
        """Write states to the state folder.

        With `all_states`, processes of the record that the host did not report are "lost".
        """
        record = self._run.record
        found = {name: parse_state(content) for name, content in states.items()}
        # None: of another version of this program.
        parsed = {name: state for name, state in found.items() if state}
        if all_states and record:
            for gone in record.processes:
                if gone.place == host_id and gone.name not in found:
                    lost = State(gone.name, gone.job, gone.host, "lost", gone.log)
                    # The host does not know any more what was to stop, such as after a reboot.
                    copy = read_state(self._run.folder / gone.name)
                    parsed[gone.name] = lost._replace(is_to_stop=bool(copy and copy.is_to_stop))
        for name, state in parsed.items():
            # Learners that were restarted on another host leave a state on this one.
            if record and record.host_id_of(name) != host_id:
                continue
            folder = self._run.folder / name
            with contextlib.suppress(OSError):  # the run was removed, or the disk is full
                folder.mkdir(exist_ok=True, mode=0o700)
                write_json(folder / "state.json", state.to_json())
        self._run.record_contact(host_id)  # last, since the states count from now on
        before = {} if all_states else self.reported.get(host_id, {})
        self.reported[host_id] = before | parsed

    def on_file_data(self, host_id: str, path: str, offset: int, data: str) -> None:
        """Write new content of a file to its copy."""
        copy = self._files.get(host_id, {}).get(path)
        if copy is None:
            return
        content = base64.b64decode(data)
        with self._writing, contextlib.suppress(OSError):  # the disk is full: it is sent again
            size = file_size(copy)
            if offset > size:  # the copy was replaced: ask for the content from its end on
                self._follow_again(host_id)
                return
            if offset == 0 and size and not _is_start_of(content, copy):  # rotated on the host
                copy.replace(copy.with_name(f"{copy.name}.1"))
            with copy.open("r+b" if copy.exists() else "wb") as file:
                file.seek(offset)
                file.write(content)

    def _follow_again(self, host_id: str) -> None:
        """Follow the files again, in another thread: the caller's thread receives the answer."""
        if host_id not in self._following_again:
            self._following_again.add(host_id)
            threading.Thread(target=self.on_connected, args=(host_id,), daemon=True).start()

    def follow_files(self, files: Mapping[str, Mapping[str, Path]]) -> None:
        """Follow these files from now on, after the learners were restarted on another host."""
        self._files = files
        for host_id in files:
            self.on_connected(host_id)

    def on_disconnected(self, host_id: str, error: str) -> None:
        """Record that a host is not connected, and why."""
        self._run.record_contact(host_id, error)

    def on_connected(self, host_id: str) -> None:
        """Ask a newly connected host for its states and for the files from the copies' ends on."""
        files = self._files.get(host_id, {})
        self._following_again.discard(host_id)
        sizes = {path: file_size(copy) for path, copy in files.items()}
        with contextlib.suppress(HostUnavailable, OperationFailed):  # asked again once it is back
            record = self._run.record
            start = record.id if record else ""
            self._hosts.call(host_id, "follow", start=start, files=sizes)


def _is_start_of(content: bytes, copy: Path) -> bool:
    """Return whether `content` begins with the copy: another frontend has replaced it already."""
    return file_size(copy) <= len(content) and content.startswith(copy.read_bytes())
