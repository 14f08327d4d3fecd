"""The tmux session of a run, with a window for each process of this machine (`window`).

The program of a window is started without a shell. The server's socket is recorded with the run,
since another terminal may use another server.
"""

import contextlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from launcher.supervise import programs
from launcher.supervise.errors import LauncherError

_BATCH = 20  # windows that one call of tmux opens
_END_SECONDS = 3.0  # seconds that windows may take to notice that processes have ended
_SECONDS = 30.0  # seconds until a call of tmux times out
# Keep the output of a program that has ended, and the name of its window.
_WINDOW_OPTIONS = (("remain-on-exit", "on"), ("automatic-rename", "off"), ("allow-rename", "off"))
_SESSION_OPTION = "@impala_mm"  # option that marks a session as made by a run
_PROGRAM = "launcher.supervise.window"  # part of the command of each window

# From a server's socket and arguments of tmux to (its output, its errors), as lines.
RunTmux = Callable[..., tuple[list[str], list[str]]]


class TmuxError(LauncherError):
    """An error of tmux; the message says what failed."""


def default_socket() -> str:
    """Return the socket of the server that `tmux attach` uses; empty if there can be none."""
    if not shutil.which("tmux"):
        return ""
    if inside := os.environ.get("TMUX"):
        return inside.split(",")[0]
    folder = Path(os.environ.get("TMUX_TMPDIR", "/tmp"))
    own = (folder if folder.is_dir() else Path("/tmp")) / f"tmux-{os.getuid()}"
    with contextlib.suppress(FileExistsError):  # tmux, or another frontend, has made it
        own.mkdir(mode=0o700)
    socket = str(own / "default")
    return "" if why_unsafe(socket) else socket


def why_unsafe(socket: str) -> str:
    """Return why a server at this socket may be another user's; empty if it cannot.

    A client of tmux sends its server all variables of its environment. Only the folder that tmux
    chooses by itself is checked: anybody can make it first.
    """
    folder = Path(socket).parent
    if folder.name != f"tmux-{os.getuid()}":
        return ""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if is_own and not found.st_mode & 0o077:
        return ""
    return f"{folder} does not belong to this user alone: remove it, or set TMUX_TMPDIR=FOLDER"


def run_program(socket: str, *arguments: str) -> tuple[list[str], list[str]]:
    """Call the tmux server of this socket; return its output and its errors."""
    try:
        ran = subprocess.run(
            ["tmux", "-S", socket, *arguments],
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TmuxError(str(error)) from None
    return ran.stdout.splitlines(), ran.stderr.splitlines()


class Session:
    """The tmux session of a run, with a window for each process."""

    def __init__(self, name: str, socket: str, run_tmux: RunTmux = run_program):
        """Represent the session on the server of this socket, which `run_tmux` calls."""
        self._name, self._socket, self._run_tmux = name, socket, run_tmux

    def exists(self) -> bool:
        """Return whether tmux has a session of this name."""
        is_installed = shutil.which("tmux") is not None
        return is_installed and not self._call("has-session", "-t", f"={self._name}")[1]

    def refuse_foreign(self) -> None:
        """Raise TmuxError if the session exists but was not made by a run."""
        if self.exists() and not self._run(
            "show-options", "-qv", "-t", f"={self._name}:", _SESSION_OPTION
        ):
            raise TmuxError(
                f"tmux has a session named {self._name} that no run made: choose another name with "
                f"--tmux_sess=NAME"
            )

    def close_ended(self) -> None:
        """Close the session of an earlier run. Raises TmuxError if its processes are running."""
        until = time.monotonic() + _END_SECONDS
        while self.exists():
            self.refuse_foreign()
            panes = self._run(
                *("list-panes", "-s", "-t", f"={self._name}"),
                *("-F", "#{pane_dead} #{pane_start_command}"),
            )
            if not any(pane.startswith("0 ") and _PROGRAM in pane for pane in panes):
                self.close()
                return
            if time.monotonic() > until:
                raise TmuxError(
                    f"tmux has a session named {self._name} whose processes are running: "
                    f"choose another name with --tmux_sess=NAME"
                )
            time.sleep(0.1)

    def close(self) -> None:
        """Close the session with all its windows, if it exists."""
        self.refuse_foreign()
        self._call("kill-session", "-t", f"={self._name}")

    def living_windows(self) -> set[str]:
        """Return the names of the windows whose program is running. Raises TmuxError."""
        if not self.exists():
            return set()
        self.refuse_foreign()
        windows = self._list_windows("#{pane_dead} #{window_name}")
        return {name for dead, name in (line.split(" ", 1) for line in windows) if dead == "0"}

    def open_windows(self, folders: dict[str, Path]) -> None:
        """Open a window for each process, by name and folder; make the session if there is none.

        A window that exists is used again: the process ran before.
        """
        existing = set(self._list_windows("#{window_name}")) if self.exists() else set()
        for name in existing & set(folders):
            program = programs.command_of("window", str(folders[name]))
            self._run("respawn-window", "-k", "-t", f"={self._name}:={name}", *program)
        windows = iter([(name, path) for name, path in folders.items() if name not in existing])
        if not existing:
            name, path = next(windows)
            # Wide from the start, so that early output is not wrapped at 80 columns.
            size = ("-x", "200", "-y", "50")
            ours = (";", "set-option", "-t", f"={self._name}:", _SESSION_OPTION, "1")
            window, options = self._window_arguments(name, path)
            self._run("new-session", "-d", "-s", self._name, *size, *window, *ours, *options)
        for some in _batches(windows):
            call: list[str] = []
            for name, path in some:
                window, options = self._window_arguments(name, path)
                call += [";"] * bool(call) + ["new-window", "-d", "-t", f"={self._name}:"]
                call += [*window, *options]
            self._run(*call)

    def _window_arguments(self, name: str, path: Path) -> tuple[list[str], list[str]]:
        """Return the arguments of a new window (no shell is involved), and its options."""
        options = []
        for option, value in _WINDOW_OPTIONS:
            target = f"={self._name}:={name}"
            options += [";", "set-option", "-w", "-t", target, option, value]
        return ["-n", name, *programs.command_of("window", str(path))], options

    def _list_windows(self, what: str) -> list[str]:
        return self._run("list-windows", "-t", f"={self._name}:", "-F", what)

    def _call(self, *arguments: str) -> tuple[list[str], list[str]]:
        if why := why_unsafe(self._socket):
            return [], [why]
        return self._run_tmux(self._socket, *arguments)

    def _run(self, *arguments: str) -> list[str]:
        printed, errors = self._call(*arguments)
        if errors:
            raise TmuxError(" ".join(errors))
        return printed


def _batches(windows: Iterator[tuple[str, Path]]) -> Iterator[list[tuple[str, Path]]]:
    while some := list(islice(windows, _BATCH)):
        yield some
