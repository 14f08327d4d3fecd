"""Copies of what other hosts say of a run, kept on the frontend's machine while it is in touch.

States of their processes go to the run's state folder, what the learners say and measure to the
run's folder: whoever asks after the run reads the same files, wherever its processes are.
"""

import base64
import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.node.run_registry import Run
from launcher.node.task import write_json
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import Failed, Lost


class Mirror:
    """Of one run. It is called by the threads of the hosts."""

    def __init__(self, run: Run, hosts: Hosts, files: Mapping[str, Mapping[str, Path]]):
        """`files`: by place and path there, the path of its copy."""
        self._run, self._hosts, self._files = run, hosts, files
        self._writing = threading.Lock()
        self._behind: set[str] = set()  # places that are asked again

    def states(self, place: str, states: dict[str, Any], whole: bool = False) -> None:
        """Those that changed; or all: then what should be there and is not is lost."""
        self._run.see(place)
        record = self._run.record
        if whole and record:
            gone = [p for p in record.processes if p.get("place") == place]
            states = {p["name"]: p | {"state": "lost", "supervisor": None} for p in gone} | states
        for name, state in states.items():
            if record and record.place(name) != place:  # learners that moved left theirs behind
                continue
            folder = self._run.folder / name
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True, mode=0o700)
                write_json(folder / "state.json", state)

    def data(self, place: str, path: str, offset: int, data: str) -> None:
        """More of a file."""
        copy = self._files.get(place, {}).get(path)
        if copy is None:
            return
        content = base64.b64decode(data)
        with self._writing, contextlib.suppress(OSError):
            known = _size(copy)
            if offset > known:  # it was begun anew here: from its end, please
                self._ask_again(place)
                return
            if offset == 0 and known and not _begins(content, copy):  # begun anew there
                copy.replace(copy.with_name(f"{copy.name}.1"))
            with copy.open("r+b" if copy.exists() else "wb") as file:
                file.seek(offset)
                file.write(content)

    def _ask_again(self, place: str) -> None:
        """Elsewhere: who calls here is the one who hears the answer."""
        if place not in self._behind:
            self._behind.add(place)
            threading.Thread(target=self.found, args=(place,), daemon=True).start()

    def copy(self, files: Mapping[str, Mapping[str, Path]]) -> None:
        """These from now on: the learners moved."""
        self._files = files
        for place in files:
            self.found(place)

    def lost(self, place: str, why: str) -> None:
        """It is not in touch."""
        self._run.see(place, why)

    def found(self, place: str) -> None:
        """It is, again or for the first time; it says at once how its processes are."""
        files = self._files.get(place, {})
        self._behind.discard(place)
        sizes = {path: _size(copy) for path, copy in files.items()}
        with contextlib.suppress(Lost, Failed):
            record = self._run.record
            start = record.id if record else ""
            self._hosts.call(place, "follow", start=start, files=sizes)


def _begins(content: bytes, copy: Path) -> bool:
    """Whether another that copies the same has begun it anew already."""
    return _size(copy) <= len(content) and content.startswith(copy.read_bytes())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
