"""Where supervisors run: in a tmux session of the run's name, a window each; or in the background.

A window's program is the supervisor itself, never something typed into a shell. tmux servers keep
the environment of whoever started them first: a process's comes in its task's file instead. Which
server it is, by its socket, is recorded with a run: another terminal may look at another.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

_CODE = Path(__file__).resolve().parents[2]  # the project's clone, or what was sent of it
_AT_ONCE = 20  # windows that one call of tmux opens
_END_SECONDS = 3.0  # that processes which have ended may still be seen
_SECONDS = 30.0  # for an answer of tmux
# The output of a program that ended is kept, and its window keeps its name.
_OPTIONS = (("remain-on-exit", "on"), ("automatic-rename", "off"), ("allow-rename", "off"))
_OURS = "@impala_mm"  # option of a session that a run made

Tmux = Callable[..., tuple[list[str], list[str]]]  # its arguments: what it printed, its errors


class Broken(Exception):
    """tmux would not; says why."""


def supervisor(task: Path) -> list[str]:
    """The command that runs a task, in `folder()`."""
    # Without the site's packages, of which it needs none, it starts in half the time.
    what = ["-m", "launcher.node.supervisor"] if _CODE.is_dir() else [str(_CODE)]
    return [sys.executable, "-ES", *what, str(task)]


def folder() -> Path:
    """That supervisors are started in."""
    return _CODE if _CODE.is_dir() else _CODE.parent


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


def program(socket: str) -> Tmux:
    """The server of this socket, asked by tmux's own program."""

    def ask(*arguments: str) -> tuple[list[str], list[str]]:
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
            raise Broken(str(error)) from None
        return ran.stdout.splitlines(), ran.stderr.splitlines()

    return ask


class Session:
    """A run's windows."""

    def __init__(self, name: str, tmux: Tmux):
        self._name, self._tmux = name, tmux

    def exists(self) -> bool:
        """Whether tmux has one of this name."""
        there = shutil.which("tmux") is not None
        return there and not self._tmux("has-session", "-t", f"={self._name}")[1]

    def refuse_foreign(self) -> None:
        """Raises Broken where it is there and was not made by a run."""
        if self.exists() and not self._ask("show-options", "-qv", "-t", f"={self._name}:", _OURS):
            raise Broken(
                f"tmux has a session called {self._name} that no run made: --tmux_sess=NAME names "
                f"another"
            )

    def clear(self) -> None:
        """Windows of a run before are closed. Raises Broken where it is somebody's still."""
        until = time.monotonic() + _END_SECONDS
        while self.exists():
            self.refuse_foreign()
            panes = self._ask(
                *("list-panes", "-s", "-t", f"={self._name}"),
                *("-F", "#{pane_dead} #{pane_start_command}"),
            )
            if not any(pane.startswith("0 ") and "task.json" in pane for pane in panes):
                self.close()
                return
            if time.monotonic() > until:
                raise Broken(
                    f"tmux has a session called {self._name} whose processes go on: "
                    f"--tmux_sess=NAME names another"
                )
            time.sleep(0.1)

    def close(self) -> None:
        """With all its windows, if it is there still."""
        self.refuse_foreign()
        self._tmux("kill-session", "-t", f"={self._name}")

    def open(self, tasks: dict[str, Path]) -> None:
        """A window for each, by name; the session is made where there is none."""
        there = self._names() if self.exists() else set()
        for name in there & set(tasks):  # of a process that was there before
            program = supervisor(tasks[name])
            self._ask("respawn-window", "-k", "-t", f"={self._name}:={name}", *program)
        windows = iter([(name, task) for name, task in tasks.items() if name not in there])
        if not there:
            name, task = next(windows)
            # Wide from the start: what nobody looks at yet is not to be wrapped at 80 columns.
            size = ("-x", "200", "-y", "50")
            ours = (";", "set-option", "-t", f"={self._name}:", _OURS, "1")
            window, options = self._window(name, task)
            self._ask("new-session", "-d", "-s", self._name, *size, *window, *ours, *options)
        for some in _dealt(windows):
            call: list[str] = []
            for name, task in some:
                window, options = self._window(name, task)
                call += [";"] * bool(call) + ["new-window", "-d", "-t", f"={self._name}:"]
                call += [*window, *options]
            self._ask(*call)

    def _window(self, name: str, task: Path) -> tuple[list[str], list[str]]:
        """Its name, folder and program, without any shell; and what is asked of tmux after it."""
        options = []
        for option, value in _OPTIONS:
            target = f"={self._name}:={name}"
            options += [";", "set-option", "-w", "-t", target, option, value]
        return ["-n", name, "-c", str(folder()), *supervisor(task)], options

    def _names(self) -> set[str]:
        return set(self._ask("list-windows", "-t", f"={self._name}:", "-F", "#{window_name}"))

    def _ask(self, *arguments: str) -> list[str]:
        printed, errors = self._tmux(*arguments)
        if errors:
            raise Broken(" ".join(errors))
        return printed


def open_in_background(tasks: dict[str, Path]) -> None:
    """Where there is no tmux."""
    for task in tasks.values():
        subprocess.Popen(
            supervisor(task),
            cwd=folder(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _dealt(windows: Iterator[tuple[str, Path]]) -> Iterator[list[tuple[str, Path]]]:
    while some := list(islice(windows, _AT_ONCE)):
        yield some
