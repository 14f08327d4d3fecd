"""Shows one process in its tmux window: its log, and how it ended.

    python -m launcher.supervise.window RUN/NAME     the folder of the process in the state folder

A window is only a view: the process and its supervisor run outside of tmux, so that closing the
window ends this program alone. Ctrl-C in the window first prints what it would do, and a second one
within a few seconds does it.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

from launcher.supervise import procfs
from launcher.supervise.log_tail import LogTail, for_terminal
from launcher.supervise.process_state import State, read_state
from launcher.supervise.task import FINAL_STATES, LEARNERS

_BACKLOG_BYTES = 1 << 16  # bytes of the log that are shown at first: some screenfuls
# Seconds between two looks at the log: a quarter of the time since its last line, within these
# limits, since one machine may have hundreds of windows.
_SHORT_SECONDS, _LONG_SECONDS = 0.1, 10.0
_CONFIRM_SECONDS = 5.0  # seconds within which a second Ctrl-C counts
_START_SECONDS = 60.0  # seconds within which a supervisor must report a state


class Window:
    """The program of one window."""

    def __init__(self, folder: Path):
        self._folder, self._name = folder, folder.name
        self._asked = -_CONFIRM_SECONDS  # time.monotonic() of the last Ctrl-C

    def show(self) -> None:
        """Show the process until its supervisor has ended."""
        signal.signal(signal.SIGINT, lambda *_: self._on_interrupt())
        state = self._wait_for_state()
        if not state:
            self._print(f"-- {self._name} was not started --")
            return
        log, supervisor = LogTail(Path(state.log), _BACKLOG_BYTES), state.supervisor
        handle, last_news, has_ended = _open_process(supervisor), time.monotonic(), False
        while True:
            if lines := log.lines():
                _write("".join(f"{for_terminal(line)}\n" for line in lines))
                last_news = time.monotonic()
            if has_ended:
                break
            pause = (time.monotonic() - last_news) / 4
            pause = min(max(pause, _SHORT_SECONDS), _LONG_SECONDS)
            has_ended = bool(select.select([handle] if handle else [], [], [], pause)[0])
            has_ended = has_ended or (not handle and not procfs.is_alive(supervisor))
        state = read_state(self._folder)
        if state and state.state not in FINAL_STATES:  # else the log's last line is the state
            self._print(f"-- {self._name}: its supervisor was killed or crashed --")

    def _wait_for_state(self) -> State | None:
        """Return the state, once the supervisor has reported one; None if it does not."""
        until = time.monotonic() + _START_SECONDS
        while not (state := read_state(self._folder)):
            if time.monotonic() > until or not self._folder.exists():
                break
            time.sleep(_SHORT_SECONDS)
        return state

    def _on_interrupt(self) -> None:
        """Print what a second Ctrl-C would do, or do it if this is the second."""
        state = read_state(self._folder)
        is_stopping = (state and state.state in ("saving", "ending")) or os.path.exists(
            self._folder / "stop"
        )
        if self._name == LEARNERS:
            will = "ends the run without saving" if is_stopping else "saves and stops the run"
        else:
            will = f"ends {self._name} at once" if is_stopping else f"stops {self._name} for good"
            will += ", and the run continues"
        if time.monotonic() - self._asked > _CONFIRM_SECONDS:
            self._asked = time.monotonic()
            self._print(f"-- Ctrl-C again within {_CONFIRM_SECONDS:g} s {will} --")
            return
        self._asked = -_CONFIRM_SECONDS
        self._print(f"-- Ctrl-C {will} --")
        self._request_stop("now" if is_stopping else "save", state)

    def _request_stop(self, mode: str, state: State | None) -> None:
        try:
            (self._folder / "stop").write_text(mode)
        except OSError:  # the disk may be full; supervisors react to signals, too
            if state and state.supervisor and procfs.is_alive(state.supervisor):
                os.kill(state.supervisor[0], signal.SIGTERM)

    def _print(self, message: str) -> None:
        _write(f"\r{message}\n")  # over the ^C that the terminal shows


def _open_process(recorded: procfs.Process | None) -> int:
    """Return a descriptor that is readable once a process has ended; 0 if there is none."""
    try:
        handle = os.pidfd_open(recorded[0]) if recorded else 0
    except OSError:  # it has just ended, or the kernel is older
        return 0
    return handle if procfs.is_alive(recorded) else 0


def _write(text: str) -> None:
    """Write to the window without a buffer, since the handler of Ctrl-C may write meanwhile."""
    content = text.encode(errors="replace")
    while content:
        content = content[os.write(1, content) :]


if __name__ == "__main__":
    Window(Path(sys.argv[1])).show()
