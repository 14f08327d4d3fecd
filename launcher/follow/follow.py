"""Follows a running run until it ends, or the user detaches.

The frontend may be closed: the run keeps running. Ctrl-C saves and stops the run. `news` prints
what happens, and `recovery` handles hosts that become unreachable.
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
from typing import Any

from impala_mm.config.messages import program
from launcher.follow.console import check_reader, discard_output, say
from launcher.follow.news import RunNews
from launcher.follow.recovery import Recovery
from launcher.follow.run_control import REPEAT_SECONDS, RunControl
from launcher.supervise.actor_watch import ActorWatch
from launcher.supervise.callbacks import Say
from launcher.supervise.run_registry import Run, run_names
from launcher.supervise.task import FINAL_STATES, LEARNERS, USER_ERROR

_CHECK_SECONDS = 0.3
_ADDRESSES_SECONDS = 300.0  # timeout for learners to report their addresses
_ADDRESSES_CHECK_SECONDS = 0.05  # seconds between two looks for these addresses
_WAITING_SECONDS = 10.0  # seconds between two messages that the actors wait for these addresses
KEYS_HINT = "`d` detaches; Ctrl-C saves and stops the run"


class NoAddresses(Exception):
    """An error: the learners have not reported their addresses in time."""


class Follower:
    """Follows one run until it ends or the user detaches."""

    def __init__(
        self, control: RunControl, logdir: Path, say: Say = say, *, shows_log: bool = True
    ):
        """Remember the end of the learners' log: create it before the run is started.

        `shows_log`: whether to print this log.
        """
        self._control, self._run, self._say = control, control.run, say
        self._news = RunNews(self._run, logdir, say, shows_log)
        self._signals: list[int] = []
        # When a stop was first requested, and when the request was last sent to all hosts.
        self._stop_requested = self._stop_sent = 0.0
        self._actor_watch = ActorWatch()
        self._ends_without_actors = False

    def install_signal_handlers(self) -> None:
        """Record signals from now on, so that Ctrl-C while the run is starting is not lost."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup has SIGHUP ignored: the frontend keeps following without its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: self._signals.append(number))

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return signal.SIGINT in self._signals

    @property
    def is_terminated(self) -> bool:
        """Whether a signal other than Ctrl-C told the frontend to detach."""
        return any(number != signal.SIGINT for number in self._signals)

    def tell(self, message: str) -> None:
        """Print a message, unless Ctrl-C ended the reader of the output, too: `follow` stops it."""
        try:
            self._say(message)
        except BrokenPipeError:
            if not self.interrupted:
                raise
            discard_output()

    def wait_for_learners(self, seconds: float = _ADDRESSES_SECONDS) -> list[str]:
        """Wait until the learners have reported their addresses, and return these.

        The result is empty if the learners ended first, or Ctrl-C was pressed. Raises
        NoAddresses after `seconds`.
        """
        began = time.monotonic()
        next_message = _WAITING_SECONDS
        while not self.interrupted:
            learners = self._run.states().get(LEARNERS, {"state": "lost"})
            if learners["state"] in (*FINAL_STATES, "lost"):
                break
            if addresses := learners.get("learner_hosts"):
                return addresses
            waited = time.monotonic() - began
            what = "the learners to report the ports that they have chosen"
            if waited > seconds:
                raise NoAddresses(
                    f"gave up waiting for {what} after {waited:.0f} s: their log may say why "
                    f"({learners.get('log', '')}); with tf_port in the CSV, actors start at once"
                )
            if waited > _WAITING_SECONDS:  # usually `follow` prints their first lines
                self._news.print_all()
            if waited > next_message:
                next_message += _WAITING_SECONDS
                self._say(f"the actors wait for {what} ({waited:.0f} s)")
            time.sleep(_ADDRESSES_CHECK_SECONDS)
        return []

    def follow(
        self, recovery: Recovery, timeout: float, detach: Callable[[], int | None] | None = None
    ) -> int:
        """Follow the run, and return the frontend's exit code.

        `timeout`: seconds that a stop request waits for a learners' host that is unreachable.
        `detach` is called when the user presses `d`, and returns the exit code; None: the frontend
        does not detach.
        """
        try:
            return self._follow(recovery, timeout, detach or self._detach)
        except BrokenPipeError:
            if not self.interrupted:
                raise
        # Ctrl-C ended the reader of the output, too, such as `tee`; the run is still to be stopped.
        discard_output()
        return self._follow(recovery, timeout, detach or self._detach)

    def _follow(self, recovery: Recovery, timeout: float, detach: Callable[[], int | None]) -> int:
        interrupted = 0
        learners: dict[str, Any] = {"state": "lost"}
        with _pressed_keys() as pressed:
            while True:
                self._news.print_all()
                check_reader()
                if not interrupted:
                    recovery.recover()
                if self.is_terminated:
                    return self._detach()
                if "d" in pressed():  # a run that is being stopped needs no controller
                    code = self._detach() if interrupted else detach()
                    if code is not None:
                        return code
                if (times := self._signals.count(signal.SIGINT)) > interrupted:
                    interrupted = times
                    self._stop(times)
                states = self._run.states()
                if not states:  # another frontend stopped the run and removed its record
                    return 130 if interrupted else 0
                learners = states[LEARNERS]
                if not interrupted:
                    self._end_without_actors(states)
                if _has_ended(learners["state"], recovery, interrupted > 0):
                    break
                if interrupted and not self._repeat_stop(learners, interrupted, timeout):
                    break
                time.sleep(_CHECK_SECONDS)
        unreached = self._control.end_remaining(
            self._say,
            lambda: self.is_terminated or self._signals.count(signal.SIGINT) > interrupted,
        )
        self._news.print_all()
        if unreached:
            self._say(unreached_message(unreached))
        return self._exit_code(learners, interrupted > 0)

    def _repeat_stop(self, learners: dict[str, Any], interrupts: int, timeout: float) -> bool:
        """Repeat the stop request to all hosts.

        Return False if the learners' host has been unreachable for too long to wait any more.
        """
        now = time.monotonic()
        self._stop_requested = self._stop_requested or now
        if self._control.hosts.remote_nodes and now - self._stop_sent > REPEAT_SECONDS:
            self._stop_sent = now
            self._control.request_stop("save" if interrupts == 1 else "now")
        return learners["state"] != "away" or (
            now - self._stop_requested < timeout and interrupts < 2
        )

    def _end_without_actors(self, states: dict[str, dict[str, Any]]) -> None:
        """End the run, some seconds after all of its actors have failed for good."""
        actors = [state["state"] for state in states.values() if state["job"] == "actor"]
        if self._actor_watch.have_all_failed(actors) and not self._ends_without_actors:
            self._ends_without_actors = True
            self._say(
                "error: the run ends, since no actor is left; start it again with the same "
                "--logdir to resume"
            )
            self._control.request_stop("save")

    def _stop(self, times: int) -> None:
        self._control.request_stop("save" if times == 1 else "now")
        if times == 1:
            self._say("saving and stopping the run; press Ctrl-C again to end it without saving")
        else:
            self._say("ending all processes without saving")

    def _detach(self) -> int:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._say(detached_message(self._run))
        return 0

    def _exit_code(self, learners: dict[str, Any], interrupted: bool) -> int:
        if learners["state"] == "away":
            self._say(
                f"error: the learners' host {learners['place']} is unreachable, so it is not known "
                f"whether they saved a checkpoint before they stopped; --fetch downloads it once "
                f"the host is back"
            )
            return 1
        if learners["state"] == "lost":
            self._say(
                "error: the learners' supervisor was killed or crashed, so the run ended; the last "
                "checkpoint is intact: start the run again with the same --logdir to resume"
            )
            return 1
        if learners["state"] == "failed":
            if learners["code"] != USER_ERROR:
                self._say("the run failed; start it again with the same --logdir to resume")
            return int(learners["code"]) or 1
        if interrupted:
            return 130
        return 1 if self._ends_without_actors else 0


def _has_ended(state: str, recovery: Recovery, interrupted: bool) -> bool:
    """Return whether a run has ended whose learners are in this state."""
    if state in ("stopped", "failed") and recovery.is_restarting_learners:
        return interrupted
    if state == "lost":
        return interrupted or not recovery.can_restart_learners
    return state in FINAL_STATES


def unreached_message(host_ids: list[str]) -> str:
    """Return the message about hosts that could not be reached when the run was stopped."""
    return (
        f"could not reach {', '.join(host_ids)}: processes that still run there will be stopped "
        f"when this machine's frontend connects again, for example by another `--stop`; actors "
        f"also exit by themselves after --orphan_secs"
    )


def detached_message(run: Run) -> str:
    """Return what the frontend prints when it detaches from a run."""
    named = "" if [run.name] == run_names() else f" --tmux_sess={run.name}"
    command = f"{program(frontend=True)}{named}"
    return (
        f"detached; the run keeps running: `{command} --status` shows it, `{command} --attach` "
        f"follows it again, `{command} --stop` saves and stops it"
    )


@contextlib.contextmanager
def _pressed_keys() -> Iterator[Callable[[], str]]:
    """Read single keys from the terminal for the time of a `with` block.

    Yield a function that returns the keys pressed since its last call; "" without a terminal.
    """
    is_terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
    if not is_terminal or not _is_in_foreground(sys.stdin.fileno()):
        yield lambda: ""
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> str:
        ready = _is_in_foreground(descriptor) and select.select([descriptor], [], [], 0)[0]
        return os.read(descriptor, 64).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(descriptor)  # in this mode Ctrl-C still sends a signal
        yield pressed
    finally:
        if _is_in_foreground(descriptor):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _is_in_foreground(terminal: int) -> bool:
    """Return whether this process may read from its terminal and change the terminal's settings.

    A background job that does so is stopped. A terminal that does not control the process, as in
    `su -c`, counts as none.
    """
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
