"""Where supervisors run: in a tmux session of the run's name, a window each; or in the background.

A window's program is the supervisor itself, never something typed into a shell. tmux servers keep
the environment of whoever started them first: a process's comes in its task's file instead. Which
server it is, by its socket, is recorded with a run: another terminal may look at another.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import libtmux
from libtmux import exc

_ROOT = Path(__file__).resolve().parent.parent
_AT_ONCE = 20  # windows that one call of tmux opens
# The output of a program that ended is kept, and its window keeps its name.
_OPTIONS = (("remain-on-exit", "on"), ("automatic-rename", "off"), ("allow-rename", "off"))
_OURS = "@impala_mm"  # option of a session that a run made


class Broken(Exception):
    """tmux would not; says why."""


def supervisor(task: Path) -> list[str]:
    """The command that runs a task."""
    # Without the site's packages, of which it needs none, it starts in half the time.
    return [sys.executable, "-ES", "-m", "launcher.supervisor", str(task)]


def here() -> str:
    """The socket of the server that `tmux attach` would find; empty without tmux."""
    if not shutil.which("tmux"):
        return ""
    if inside := os.environ.get("TMUX"):
        return inside.split(",")[0]
    folder = Path(os.environ.get("TMUX_TMPDIR", "/tmp"))
    own = (folder if folder.is_dir() else Path("/tmp")) / f"tmux-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    return str(own / "default")


class Session:
    """A run's windows."""

    def __init__(self, name: str, socket: str):
        self._name, self._server = name, libtmux.Server(socket_path=socket)

    def exists(self) -> bool:
        """Whether tmux has one of this name."""
        return shutil.which("tmux") is not None and self._server.has_session(self._name)

    def refuse_foreign(self) -> None:
        """Raises Broken where it is there and was not made by a run."""
        if self.exists() and not self._ask("show-options", "-qv", "-t", f"={self._name}:", _OURS):
            raise Broken(
                f"tmux has a session called {self._name} that no run made: --tmux_sess=NAME names "
                f"another"
            )

    def close(self) -> None:
        """With all its windows, if it is there still."""
        self.refuse_foreign()
        self._server.cmd("kill-session", "-t", f"={self._name}")

    def open(self, tasks: dict[str, Path]) -> None:
        """A window for each, by name; the session is made where there is none."""
        windows = iter(tasks.items())
        if not self.exists():
            name, task = next(windows)
            # Wide from the start: what nobody looks at yet is not to be wrapped at 80 columns.
            size = ("-x", "200", "-y", "50")
            ours = (";", "set-option", "-t", f"={self._name}:", _OURS, "1")
            program, options = self._window(name, task)
            self._ask("new-session", "-d", "-s", self._name, *size, *program, *ours, *options)
        for some in _dealt(windows):
            call: list[str] = []
            for name, task in some:
                program, options = self._window(name, task)
                call += [";"] * bool(call) + ["new-window", "-d", "-t", f"={self._name}:"]
                call += [*program, *options]
            self._ask(*call)

    def _window(self, name: str, task: Path) -> tuple[list[str], list[str]]:
        """Its name, folder and program, without any shell; and what is asked of tmux after it."""
        options = []
        for option, value in _OPTIONS:
            target = f"={self._name}:={name}"
            options += [";", "set-option", "-w", "-t", target, option, value]
        return ["-n", name, "-c", str(_ROOT), *supervisor(task)], options

    def _ask(self, *arguments: str) -> list[str]:
        try:
            answer = self._server.cmd(*arguments)
        except exc.LibTmuxException as error:
            raise Broken(str(error)) from None
        if answer.stderr:
            raise Broken(" ".join(answer.stderr))
        return answer.stdout


def open_in_background(tasks: dict[str, Path]) -> None:
    """Where there is no tmux."""
    for task in tasks.values():
        subprocess.Popen(
            supervisor(task),
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _dealt(windows: Iterator[tuple[str, Path]]) -> Iterator[list[tuple[str, Path]]]:
    while some := list(islice(windows, _AT_ONCE)):
        yield some
