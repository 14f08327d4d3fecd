"""Where supervisors run: in a tmux session of the run's name, a window each; or in the background.

A window's program is the supervisor itself, never something typed into a shell. tmux servers keep
the environment of whoever started them first: a process's comes in its task's file instead.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
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


def there() -> bool:
    """Whether this machine has tmux."""
    return shutil.which("tmux") is not None


def exists(session: str) -> bool:
    """Whether tmux has a session of this name."""
    return there() and libtmux.Server().has_session(session)


def close(session: str) -> None:
    """With all its windows. Raises Broken where it is somebody else's."""
    if not exists(session):
        return
    if not libtmux.Server().cmd("show-options", "-v", "-t", f"={session}:", _OURS).stdout:
        raise Broken(
            f"tmux has a session called {session} that no run made: --tmux_sess=NAME names another"
        )
    _tmux("kill-session", "-t", f"={session}")


def open_in(session: str, tasks: dict[str, Path]) -> None:
    """A window for each, by name, in a session that is made where there is none."""
    windows = iter(tasks.items())
    if not exists(session):
        name, task = next(windows)
        # Wide from the start: what nobody looks at yet is not to be wrapped at 80 columns.
        size = ("-x", "200", "-y", "50")
        _tmux("new-session", "-d", "-s", session, *size, *_window(session, name, task))
        _tmux("set-option", "-t", f"={session}:", _OURS, "1")
    for some in _dealt(windows):
        call: list[str] = []
        for name, task in some:
            call += [";"] * bool(call) + ["new-window", "-d", "-t", f"={session}:"]
            call += _window(session, name, task)
        _tmux(*call)


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


def _window(session: str, name: str, task: Path) -> list[str]:
    command = ["-n", name, "-c", str(_ROOT), *supervisor(task)]  # without any shell
    for option, value in _OPTIONS:
        command += [";", "set-option", "-w", "-t", f"={session}:={name}", option, value]
    return command


def _dealt(windows: Iterable[tuple[str, Path]]) -> Iterator[list[tuple[str, Path]]]:
    while some := list(islice(iter(windows), _AT_ONCE)):
        yield some


def _tmux(*arguments: str) -> None:
    try:
        answer = libtmux.Server().cmd(*arguments)
    except exc.LibTmuxException as error:
        raise Broken(str(error)) from None
    if answer.stderr:
        raise Broken(" ".join(answer.stderr))
