"""The tmux windows that show one machine's processes of a run; no process depends on them."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from launcher.node import tmux
from launcher.node.run_registry import Record, Run, RunInUse
from launcher.node.task import FINAL_STATES


class RunWindows:
    """The windows of one run, in the session of its name."""

    def __init__(self, run: Run, make_tmux: Callable[[str], tmux.RunTmux]):
        """Represent them; `make_tmux` returns the function that calls the server of a socket."""
        self._run, self.make_tmux = run, make_tmux

    def session(self, socket: str) -> tmux.Session:
        """Return the session of the run on the server of this socket."""
        return tmux.Session(self._run.name, self.make_tmux(socket))

    def open(self, folders: dict[str, Path], record: Record) -> str:
        """Open windows of processes, given their folders by name; return why not, or nothing."""
        if not record.socket or not folders:
            return ""
        try:
            self.session(record.socket).open_windows(folders)
        except tmux.TmuxError as error:
            return _describe(error)
        return ""

    def open_closed(self, record: Record) -> str:
        """Open the windows of running processes that were closed; return why not, or nothing."""
        if not record.socket:
            return ""
        try:
            living = self.session(record.socket).living_windows()
        except tmux.TmuxError as error:
            return _describe(error)
        missing = {
            name: self._run.folder / name
            for name, state in self._run.local_states().items()
            if state["state"] not in (*FINAL_STATES, "lost") and name not in living
        }
        with contextlib.suppress(RunInUse), self._run.locked():  # else another frontend opens them
            return self.open(missing, record)
        return ""

    def close(self, record: Record) -> None:
        """Close all of them."""
        if record.socket:
            self.session(record.socket).close()


def _describe(error: tmux.TmuxError) -> str:
    return f"tmux cannot show the processes: {error}"
