"""The frontend while a run goes on: what learners say, the first error of each process, the end.

It may be closed: the run goes on without it. Ctrl-C saves and stops the run; hosts that are lost
are given up and used again as `recovery` says.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from launcher.node.callbacks import Say
from launcher.node.run_registry import Run
from launcher.node.task import FINAL_STATES, LEARNERS
from launcher.running.recovery import Recovery
from launcher.running.run_control import RunControl

_CHECK_SECONDS = 0.3
_REPEAT_SECONDS = 2.0  # between orders, of which one may not have come


class LogTail:
    """What is appended to a log from now on, line by line, though it is begun anew now and then."""

    def __init__(self, path: Path, from_its_end: bool = False):
        self._path, self._partial_line = path, b""
        self._file = self._open()
        if self._file and from_its_end:
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> list[str]:
        """Since the last call."""
        content = self._file.read() if self._file else b""
        with contextlib.suppress(OSError):
            if not self._file or self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
                if self._file:  # the last of the one before
                    content += self._file.read()
                    self._file.close()
                self._file = self._open()
                content += self._file.read() if self._file else b""
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _open(self) -> BinaryIO | None:
        with contextlib.suppress(OSError):
            return self._path.open("rb")
        return None


class Follower:
    """The frontend of one run, to its end or until it is detached."""

    def __init__(self, control: RunControl, logdir: Path, say: Say = print):
        """Before the run is started: all that learners say from now on is its."""
        self._control, self._run, self._say = control, control.run, say
        self._learners_log = LogTail(logdir / f"{LEARNERS}.log", from_its_end=True)
        self._reported_failures: dict[
            str, tuple[float, int]
        ] = {}  # by process: its last failure, how many
        self._signals: list[int] = []
        self._stop_requested = self._stop_sent = (
            0.0  # when an end was asked for, and last told to all
        )

    def install_signal_handlers(self) -> None:
        """To signals, from here on: what asks for an end while a run is started is not lost."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._signals.append(number))

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return signal.SIGINT in self._signals

    def follow(self, recovery: Recovery, timeout: float) -> int:
        """The frontend's exit code. `timeout`: seconds for a host that is to hear of the end."""
        interrupted = 0
        learners: dict[str, Any] = {"state": "lost"}
        with _pressed_keys() as pressed:
            while True:
                self._print_news()
                if not interrupted:
                    recovery.recover()
                if any(number != signal.SIGINT for number in self._signals) or "d" in pressed():
                    return self._detach()
                if (times := self._signals.count(signal.SIGINT)) > interrupted:
                    interrupted = times
                    self._stop(times)
                states = self._run.states()
                if not states:  # ended by another frontend, and put away
                    return 130 if interrupted else 0
                learners = states[LEARNERS]
                has_ended = learners["state"] in FINAL_STATES
                if learners["state"] == "lost":
                    has_ended = interrupted > 0 or not recovery.can_restart_learners
                if has_ended:
                    break
                if interrupted and not self._repeat_stop(learners, interrupted, timeout):
                    break
                time.sleep(_CHECK_SECONDS)
        unreached = self._control.end_remaining(self._say)
        self._print_news()
        if unreached:
            self._say(unreached_message(unreached))
        return self._exit_code(learners, interrupted > 0)

    def _repeat_stop(self, learners: dict[str, Any], interrupts: int, timeout: float) -> bool:
        """Tells hosts that were away of the end; False: the learners' stays away for too long."""
        now = time.monotonic()
        self._stop_requested = self._stop_requested or now
        if self._control.hosts.remote_nodes and now - self._stop_sent > _REPEAT_SECONDS:
            self._stop_sent = now
            self._control.request_stop("save" if interrupts == 1 else "now")
        return learners["state"] != "away" or (
            now - self._stop_requested < timeout and interrupts < 2
        )

    def _print_news(self) -> None:
        for line in self._learners_log.lines():
            self._say(line)
        for name, state in self._run.states().items():
            failure = state.get("failure")
            reported, times = self._reported_failures.get(name, (0.0, 0))
            if failure and failure["time"] != reported:
                self._reported_failures[name] = failure["time"], times + 1
                self._say(failure_message(state, times + 1))

    def _stop(self, times: int) -> None:
        if times == 1:
            self._say("the run saves and stops; Ctrl-C again ends it at once")
            self._control.request_stop("save")
        else:
            self._say("all end now")
            self._control.request_stop("now")

    def _detach(self) -> int:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._say(detached_message(self._run))
        return 0

    def _exit_code(self, learners: dict[str, Any], interrupted: bool) -> int:
        if learners["state"] == "away":
            self._say("error: the learners' host does not answer: whether they saved is not known")
            return 1
        if learners["state"] == "lost":
            self._say("error: the learners' supervisor is gone; what was saved is good")
            return 1
        if learners["state"] == "failed":
            return int(learners["code"]) or 1
        if interrupted:
            return 130
        return 0


def failure_message(state: dict[str, Any], times: int) -> str:
    """What is said where the user sits of a process that failed."""
    failure = state["failure"]
    repeated = (
        f", for the {times}th time" if times > 3 else ("", " again", " a third time")[times - 1]
    )
    lines = [f"{state['name']} on {state['host']} failed{repeated}: {failure['why']}"]
    lines += [f"    {line}" for line in failure["lines"]]
    return "\n".join([*lines, f"  {failure['next']}; its log: {state['log']}"])


def unreached_message(host_ids: list[str]) -> str:
    """Hosts that were not told that the run is over."""
    return (
        f"no answer from {', '.join(host_ids)}: what goes on there ends when a frontend here next "
        f"reaches them, as `--stop` again does; actors end by themselves after --orphan_secs"
    )


def detached_message(run: Run) -> str:
    """To a run that is left to itself."""
    named = "" if run.name == "impala" else f" --tmux_sess={run.name}"
    command = f"python run_experiment_mm_raw.py{named}"
    return f"the run goes on: `{command} --status` shows it, `{command} --stop` saves and ends it"


@contextlib.contextmanager
def _pressed_keys() -> Iterator[Callable[[], str]]:
    """A function that says which key was pressed since, where there is a terminal to press one."""
    is_terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
    if not is_terminal or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():  # none, or not in front
        yield lambda: ""
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> str:
        ready = select.select([descriptor], [], [], 0)[0]
        return os.read(descriptor, 64).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(descriptor)  # Ctrl-C stays a signal
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
