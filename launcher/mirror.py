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

from launcher.host.registry import Run
from launcher.host.task import write_json
from launcher.hosts import Hosts
from launcher.there import Failed, Lost


class Mirror:
    """Of one run. It is called by the threads of the hosts."""

    def __init__(self, run: Run, hosts: Hosts, files: Mapping[str, Mapping[str, Path]]):
        """`files`: by place and path there, the path of its copy."""
        self._run, self._hosts, self._files = run, hosts, files
        self._writing = threading.Lock()

    def states(self, place: str, states: dict[str, Any]) -> None:
        """Those that changed."""
        self._run.see(place)
        for name, state in states.items():
            folder = self._run.folder / name
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True, mode=0o700)
                write_json(folder / "state.json", state)

    def data(self, place: str, path: str, offset: int, data: str) -> None:
        """More of a file."""
        copy = self._files.get(place, {}).get(path)
        if copy is None:
            return
        with self._writing, contextlib.suppress(OSError):
            known = copy.stat().st_size if copy.exists() else 0
            if offset == 0 and known:  # begun anew there
                copy.replace(copy.with_name(f"{copy.name}.1"))
            elif offset > known:
                return
            with copy.open("r+b" if offset else "wb") as file:
                file.seek(offset)
                file.write(base64.b64decode(data))

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
        sizes = {path: _size(copy) for path, copy in files.items()}
        with contextlib.suppress(Lost, Failed):
            self._hosts.call(place, "follow", files=sizes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
