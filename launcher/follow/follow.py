"""Follows a running run until it ends, or the user detaches.

The frontend may be closed: the run keeps running. Ctrl-C saves and stops the run. `recovery`
handles hosts that become unreachable and processes that are lost.
"""

import collections
import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path

from impala_mm.config.messages import log_line, program
from launcher.follow import controller
from launcher.follow.connected_run import REPEAT_SECONDS
from launcher.follow.console import check_reader, discard_output
from launcher.follow.followed_run import FollowedRun
from launcher.follow.recovery import Recovery
from launcher.hosts.mirror import mirror_folder
from launcher.supervise.callbacks import Say
from launcher.supervise.errors import LauncherError
from launcher.supervise.log_tail import LogTail, for_terminal
from launcher.supervise.process_state import ActorWatch, Failure, State
from launcher.supervise.run_registry import Run, run_names
from launcher.supervise.task import LEARNERS, USER_ERROR

_CHECK_SECONDS = 0.3
_ADDRESSES_SECONDS = 300.0  # timeout for learners to report their addresses
_ADDRESSES_CHECK_SECONDS = 0.05  # seconds between two looks for these addresses
_WAITING_SECONDS = 10.0  # seconds between two messages that the actors wait for these addresses
_REMEMBERED_LINES = 400  # lines of the learners' log; a supervisor remembers as many
# The beginning of a line that differs where two actors print the same.
_OWN_PREFIX = re.compile(r"^(\[actor \d+\] |\d\d:\d\d:\d\d )")
# Lines of the learners' supervisor about their end.
_END_OF_LEARNERS = re.compile(r"\d\d:\d\d:\d\d (it .*; the run ends|-- learners: failed.* --)")
KEYS_HINT = "`d` detaches; Ctrl-C saves and stops the run"


class Follower:
    """Follows one run until it ends or the user detaches."""

    def __init__(
        self,
        followed: FollowedRun,
        logdir: Path,
        command: Sequence[str] = (),
        *,
        shows_log: bool = True,
    ):
        """Remember the end of the learners' log: create it before the run is started.

        `logdir`: the run's folder on this machine; `command`: that of this frontend, from which a
        controller's is made; `shows_log`: whether to print the learners' log.
        """
        self._followed, self._run, self._say = followed, followed.run, followed.say
        self._command = command
        self._news = RunNews(self._run, logdir, self._say, shows_log)
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

    def wait_for_learners(self) -> list[str]:
        """Wait until the learners have reported their addresses, and return these.

        The result is empty if the learners ended first, or Ctrl-C was pressed. Raises LauncherError
        if they have not reported them in time.
        """
        began = time.monotonic()
        next_message = _WAITING_SECONDS
        while not self.interrupted:
            learners = self._run.state_of(LEARNERS)
            if learners.has_ended:
                break
            if learners.learner_hosts:
                return list(learners.learner_hosts)
            waited = time.monotonic() - began
            what = "the learners to report the ports that they have chosen"
            if waited > _ADDRESSES_SECONDS:
                raise LauncherError(
                    f"gave up waiting for {what} after {waited:.0f} s: their log may say why "
                    f"({learners.log}); with tf_port in the CSV, actors start at once"
                )
            if waited > _WAITING_SECONDS:  # usually `follow` prints their first lines
                self._news.print_all()
            if waited > next_message:
                next_message += _WAITING_SECONDS
                self._say(f"the actors wait for {what} ({waited:.0f} s)")
            time.sleep(_ADDRESSES_CHECK_SECONDS)
        return []

    def follow(self) -> int:
        """Follow the run, and return the frontend's exit code."""
        followed, recovery = self._followed, Recovery(self._followed)
        with mirror_folder(followed.config.mirror_logdir, self._run, followed.hosts, self._say):
            try:
                return self._follow(recovery)
            except BrokenPipeError:
                if not self.interrupted:
                    raise
            # Ctrl-C ended the reader of the output, too, such as `tee`; the run is to be stopped.
            discard_output()
            return self._follow(recovery)

    def _follow(self, recovery: Recovery) -> int:
        interrupted = 0
        with _single_keys():
            while True:
                self._news.print_all()
                check_reader()
                if not interrupted:
                    recovery.recover()
                if self.is_terminated:
                    return self._say_detached()
                if "d" in _pressed_keys():  # a run that is being stopped needs no controller
                    code = self._say_detached() if interrupted else self.detach()
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
                if learners.has_ended and (
                    interrupted or not recovery.restarts_learners(learners.state)
                ):
                    break
                if interrupted and not self._repeat_stop(learners, interrupted):
                    break
                time.sleep(_CHECK_SECONDS)
        unreached = self._followed.end_remaining(
            lambda: self.is_terminated or self._signals.count(signal.SIGINT) > interrupted
        )
        self._news.print_all()
        if unreached:
            self._say(unreached_message(unreached))
        return self._exit_code(learners, interrupted > 0)

    def _repeat_stop(self, learners: State, interrupts: int) -> bool:
        """Repeat the stop request to all hosts.

        Return False if the learners' host has been unreachable for too long to wait any more.
        """
        now = time.monotonic()
        self._stop_requested = self._stop_requested or now
        if self._followed.hosts.remote_nodes and now - self._stop_sent > REPEAT_SECONDS:
            self._stop_sent = now
            self._followed.request_stop("save" if interrupts == 1 else "now")
        return learners.state != "away" or (
            now - self._stop_requested < self._followed.config.stop_secs and interrupts < 2
        )

    def _end_without_actors(self, states: dict[str, State]) -> None:
        """End the run, some seconds after all of its actors have failed for good."""
        if self._actor_watch.have_all_failed(states.values()) and not self._ends_without_actors:
            self._ends_without_actors = True
            self._say(
                "error: the run ends, since no actor is left; start it again with the same "
                "--logdir to resume"
            )
            self._followed.request_stop("save")

    def _stop(self, times: int) -> None:
        self._followed.request_stop("save" if times == 1 else "now")
        if times == 1:
            self._say("saving and stopping the run; press Ctrl-C again to end it without saving")
        else:
            self._say("ending all processes without saving")

    def detach(self) -> int | None:
        """Leave the run with a controller, and return the frontend's exit code.

        The result is None if Ctrl-C was pressed before the controller was ready.
        """
        record, code = self._run.record, 0
        if record and self._followed.config.controller != controller.NONE:
            self._followed.release_lock()
            command = controller.command_of(self._command, self._run.name)
            log = Path(record.logdir) / controller.LOG_FILE
            try:
                report = controller.ensure(
                    self._run, command, ".", log, self._say, lambda: self.interrupted
                )
            except (controller.NotStarted, OSError) as error:
                self._say(f"error: the controller could not be started: {error}")
                code = 1
            else:
                if report is None:
                    return None
                self._say(f"{report.describe()}; log: {report.log}")
                if sentence := self._followed.describe_logins():
                    self._say(sentence)
        return self._say_detached(code)

    def _say_detached(self, code: int = 0) -> int:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._say(detached_message(self._run))
        return code

    def _exit_code(self, learners: State, interrupted: bool) -> int:
        if learners.state == "away":
            self._say(
                f"error: the learners' host {learners.place} is unreachable, so it is not known "
                f"whether they saved a checkpoint before they stopped; --fetch downloads it once "
                f"the host is back"
            )
            return 1
        if learners.state == "lost":
            self._say(
                "error: the learners' supervisor was killed or crashed, so the run ended; the last "
                "checkpoint is intact: start the run again with the same --logdir to resume"
            )
            return 1
        if learners.state == "failed":
            if learners.code != USER_ERROR:
                self._say("the run failed; start it again with the same --logdir to resume")
            return learners.code or 1
        if interrupted:
            return 130
        return 1 if self._ends_without_actors else 0


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
def _single_keys() -> Iterator[None]:
    """Let the terminal, if there is one, pass on each key at once for the time of a `with` block.

    In this mode Ctrl-C still sends a signal.
    """
    if (terminal := _find_terminal()) is None:
        yield
        return
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        if _find_terminal() is not None:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed_keys() -> str:
    """Return the keys that were pressed since the last call; empty without a terminal."""
    terminal = _find_terminal()
    if terminal is None or not select.select([terminal], [], [], 0)[0]:
        return ""
    return os.read(terminal, 64).decode(errors="replace")


def _find_terminal() -> int | None:
    """Return the descriptor of the terminal, if this process may read from it and change it.

    A background job that does so is stopped. A terminal that does not control the process, as in
    `su -c`, counts as none.
    """
    if sys.stdin is None or sys.stdin.closed:
        return None
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except OSError:  # stdin is no terminal, or no descriptor
        return None


class RunNews:
    """The news of one run."""

    def __init__(self, run: Run, logdir: Path, say: Say, shows_log: bool):
        """Remember the end of the learners' log; `shows_log`: whether to print this log."""
        self._run, self._say, self._shows_log = run, say, shows_log
        self._learners_log = LogTail(logdir / f"{LEARNERS}.log", max_bytes=0)
        # By process: the time of its last failure that was printed, and the number of failures.
        self._reported_failures: dict[str, tuple[float, int]] = {}
        self._reasons: dict[tuple[str, ...], str] = {}  # the first process that failed with lines
        self._printed: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)

    def print_all(self) -> None:
        """Print what has happened since the last call."""
        for line in self._learners_log.lines():
            # `failure_message` contains the line about the end.
            if self._shows_log and not _END_OF_LEARNERS.fullmatch(line):
                print(for_terminal(line), flush=True)
            if self._shows_log:
                self._printed.append(line)
        for name, state in self._run.states().items():
            failure = state.failure
            reported, times = self._reported_failures.get(name, (0.0, 0))
            if failure and failure.time != reported:
                self._reported_failures[name] = failure.time, times + 1
                self._say(
                    failure_message(state, failure, times + 1, self._same_lines(name, failure))
                )

    def _same_lines(self, name: str, failure: Failure) -> str:
        """Return which lines on the screen are those of a failure; empty if none are."""
        if not failure.lines:
            return ""
        if name == LEARNERS and set(failure.lines) <= set(self._printed):
            return "its lines are above"
        first = self._reasons.setdefault(
            tuple(_OWN_PREFIX.sub("", line) for line in failure.lines), name
        )
        return "" if first == name else f"its lines are the same as those of {first}"


def failure_message(state: State, failure: Failure, times: int, same_lines: str = "") -> str:
    """Return the message about a process that failed for the given number of times.

    `same_lines`, which says where its lines are shown already, takes the place of the lines.
    """
    repeated = f" {times} times" if times > 1 else ""
    lines = [f"{state.name} on {state.host} failed{repeated}: {failure.why}"]
    shown = [same_lines] if same_lines else failure.lines
    lines += [f"    {log_line(line)}" for line in shown]
    return "\n".join([*lines, f"  {failure.next}; log: {state.log}"])
