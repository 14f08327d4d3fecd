"""Runs one process of a run: restarts it, watches its heartbeat, keeps its log, stops it.

    python -m launcher.supervise.supervisor TASK.json

It runs in the background, in a session without a terminal, so that neither a closed window nor the
end of the login that started it ends it; `experiment.py` starts one for each of its own processes
(`foreground`). It communicates with other programs only through files in the run's state folder
(listed in `task`), so frontends and windows can come and go.
"""

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from launcher.supervise import child_process, file_lock, procfs, programs
from launcher.supervise.json_files import (
    file_size,
    fits,
    from_json,
    is_gone,
    read_json,
    read_text,
)
from launcher.supervise.leftovers import remove_leftovers, remove_shared_parameters
from launcher.supervise.liveness import HeartbeatMonitor
from launcher.supervise.process_output import ProcessOutput, error_lines
from launcher.supervise.process_state import Failure, StateWriter, read_state
from launcher.supervise.task import (
    CRASH_VARIABLE,
    HOST_NAME_VARIABLE,
    HOSTS_VARIABLE,
    LEARNERS,
    USER_ERROR,
    Task,
    with_learner_hosts,
)

_STABLE_SECONDS = 600.0  # seconds that a process must run for its count of crashes to restart
_CHECK_SECONDS = 0.4  # seconds between checks; one machine may have hundreds of supervisors
_HOSTS_CHECK_SECONDS = 0.05  # the same while actors may wait for the learners' addresses
_READ_BYTES = 1 << 16  # bytes of output that are read at once
_KILL_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL
# Why a program never starts; others, such as ENOMEM, may pass.
_MISTAKES = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ENOEXEC,
    errno.E2BIG,
}
_LEARNERS_SECONDS = 60.0  # seconds that a process waits for the learners to be started
_LOCK_SECONDS = 8.0  # seconds that the supervisor of an ended process may need to exit


class StopRequests:
    """All requests to stop one process: by a file, by signals, or by the end of others."""

    def __init__(self, task: Task, heartbeat: HeartbeatMonitor):
        self._task, self._heartbeat, self._run_folder = task, heartbeat, Path(task.folder)
        self._process_folder = self._run_folder / task.name
        # When frontends have touched the file of their news, and the frames so far.
        self._last_seen: tuple[Any, float | None] = (None, None)
        self._created = self._renewed = time.monotonic()
        self.signals: list[int] = []  # those that the supervisor received
        self.passed_on = ""  # the request that the supervisor passed on: "save" or "now"

    def newest(self) -> str:
        """Return the stop request so far: "save", "now", or "" if there is none.

        A file requests it, a signal, or the end of the learners or of the parent.
        """
        requests = [
            read_text(self._process_folder / "stop"),
            read_text(self._run_folder / "stop"),
        ]
        if requests[1] == "save" and not self._task.is_learners:
            requests[1] = ""  # the learners save first; then this process ends because they ended
        elif requests[1] == "ended":
            requests[1] = "save"
        if self.signals:
            requests.append("save" if len(self.signals) == 1 else "now")
        if "now" in requests or self.passed_on == "now" or self.has_parent_ended():
            return "now"
        has_ended = "save" in requests or self._have_learners_ended()
        # Without its folder no request could reach this supervisor any more.
        return "save" if has_ended or is_gone(self._process_folder) else self.passed_on

    def has_parent_ended(self) -> bool:
        """Return whether the process for which this one was started has ended."""
        parent = self._task.parent
        return parent is not None and not procfs.is_alive(parent)

    def _have_learners_ended(self) -> bool:
        """Return whether the learners have ended, for a process of another kind."""
        if self._task.is_learners:
            return False
        if self._task.lease_secs is not None:
            return self._has_lease_expired(self._task.lease_secs)
        folder = self._run_folder / LEARNERS
        learners = read_state(folder)
        if not learners:  # they have not been started yet, or never will be
            is_late = time.monotonic() - self._created > _LEARNERS_SECONDS
            return is_late and is_gone(folder / "state.json")
        return learners.has_ended or not procfs.is_alive(learners.supervisor)

    def _has_lease_expired(self, seconds: float) -> bool:
        """Return whether learners on another host, whose end cannot be seen here, may have ended.

        That is so without progress, since actors whose learner is gone make none, and without a
        frontend that is connected to this host, for this time by our own monotonic clock; 0
        seconds: it never is.
        """
        if not seconds:
            return False
        touched = None
        with contextlib.suppress(OSError):  # no frontend has been connected yet
            touched = (self._run_folder / "news").stat().st_mtime_ns
        if (seen := (touched, self._heartbeat.frames())) != self._last_seen:
            self._last_seen, self._renewed = seen, time.monotonic()
        return time.monotonic() - self._renewed > seconds


class Supervisor:
    """The supervisor of one process."""

    def __init__(self, task: Task):
        self._task, self._run_folder = task, Path(task.folder)
        self._process_folder = self._run_folder / task.name
        self._output = ProcessOutput(task.log, task.log_max_mb)
        self._heartbeat = HeartbeatMonitor(self._process_folder / "beat")
        self._hosts_file = self._process_folder / "hosts.json"
        self._awaits_hosts = False  # whether this start of the learners has not reported addresses
        self._requests = StopRequests(task, self._heartbeat)
        self._started = time.monotonic()
        self._process: subprocess.Popen | None = None
        self._start_code = USER_ERROR  # how a process counts that could not be started
        self._stop_signals: list[
            tuple[signal.Signals, float]
        ] = []  # still to be sent: (signal, seconds until the next one)
        self._next_signal_time = 0.0
        self._crashes = 0  # crashes in a row
        self._has_worked = False  # whether it has reported frames since it was first started
        self._last_crash = ""  # before it had worked, see `HeartbeatMonitor.crash`
        self._kill_reason = ""  # why this supervisor killed the process; empty if it did not
        self._checked = 0.0
        self._state = StateWriter(task, self._output, self._heartbeat)

    def run(self) -> int:
        """Run the process, with restarts, until it ends for good; return its last exit code."""
        # Not SIG_IGN, which the process would inherit.
        signal.signal(signal.SIGHUP, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self._requests.signals.append(number))
        # The state is written before the task is removed: a process without both counts as lost.
        self._state.write()
        (self._process_folder / "task.json").unlink(missing_ok=True)
        child_process.adopt_orphans()
        while True:
            self._start()
            code = self._run_to_end()
            wait = self._seconds_to_restart(code)
            if wait is None or self._wait_for_restart(wait):
                break
        if self._state.state.state == "waits":  # a stop request came before the restart
            self._state.write(state="stopped")
        # The code of a process that was stopped is that of the signal, which is no failure.
        state, code = self._state.state.state, self._state.state.code or 0
        shown = "" if state == "stopped" else f", exit code {code}"
        self._output.write_message(f"-- {self._task.name}: {state}{shown} --")
        if self._task.job == "actor":
            remove_shared_parameters()
        if self._requests.has_parent_ended():  # it would have removed this folder
            import shutil  # noqa: PLC0415 - it is needed by few and would delay all

            shutil.rmtree(self._run_folder, ignore_errors=True)
        return code

    # -- one run of the process

    def _start(self) -> None:
        self._heartbeat.reset()
        self._output.lines.clear()
        self._kill_reason = ""
        self._initial_rows_size = file_size(self._task.rows)
        task = self._task
        if task.is_learners:
            remove_leftovers(Path(task.environment.get("TMPDIR") or "/tmp"))
            self._awaits_hosts = True
            self._hosts_file.unlink(missing_ok=True)
            # A restarted learner takes its former port, since actors know that one.
            from launcher.supervise import loopback  # noqa: PLC0415 - needed by few, would delay all

            local_only, note = loopback.variables(task, self._process_folder)
            if note:
                self._output.write_message(f"note: {note}")
            hosts = {HOSTS_VARIABLE: str(self._hosts_file)}
            task = task._replace(
                command=with_learner_hosts(task.command, self._state.state.learner_hosts),
                environment=task.environment | hosts | local_only,
            )
        command, environment = programs.complete(task.command, task.environment)
        try:
            self._process = child_process.start(
                command,
                environment | {HOST_NAME_VARIABLE: task.host, CRASH_VARIABLE: self._last_crash},
                task.workdir,
                # Learners may run under mpirun, which must end its ranks.
                death_signal=signal.SIGTERM if task.rows else signal.SIGKILL,
            )
        except OSError as error:
            self._output.write_message(
                f"error: {error.filename or self._task.command[0]}: {error.strerror}"
            )
            self._process = None
            self._start_code = USER_ERROR if error.errno in _MISTAKES else 1
            return
        self._started = time.monotonic()
        self._state.write_start(procfs.identify(self._process.pid))

    def _run_to_end(self) -> int:
        process = self._process
        if process is None:
            return self._start_code
        assert process.stdout
        pipe = process.stdout.fileno()
        open_still = True
        while process.poll() is None:
            if not open_still:  # the process closed its output but keeps running
                time.sleep(_CHECK_SECONDS)
            elif _is_readable(pipe, _HOSTS_CHECK_SECONDS if self._awaits_hosts else _CHECK_SECONDS):
                open_still = self._read_output(pipe)
            self._read_learner_hosts()
            if time.monotonic() - self._checked > _CHECK_SECONDS:  # also while output never stops
                self._checked = time.monotonic()
                self._send_stop_signals(process)
                self._check_heartbeat(process)
                self._state.write_if_due()
        child_process.kill_orphans()
        self._read_learner_hosts()
        while open_still and _is_readable(pipe):
            open_still = self._read_output(pipe)
        process.stdout.close()
        code = child_process.exit_code(process)
        # mpirun exits with 0 even if it lost learners on another host.
        needs_sign = code == 0 and self._task.has_other_hosts
        if needs_sign and not read_json(self._hosts_file).get("ended"):
            self._kill_reason = "mpirun exited with code 0, but learner 0 did not report its end"
            return 1
        return code

    def _read_learner_hosts(self) -> None:
        """Write the learners' addresses to the state once this start of them has reported them."""
        if not self._awaits_hosts:
            return
        addresses = read_json(self._hosts_file).get("learner_hosts")
        if addresses and fits(addresses, list[str]):
            self._awaits_hosts = False
            self._state.write(learner_hosts=tuple(addresses))

    def _read_output(self, pipe: int) -> bool:
        """Read one piece of the output, which may never end; return False at its end."""
        content = os.read(pipe, _READ_BYTES)
        self._output.write(content)
        return bool(content)

    def _send_stop_signals(self, process: subprocess.Popen) -> None:
        """Pass a stop request on to the process, with stronger signals if it does not end."""
        requested = self._requests.newest()
        if requested != self._requests.passed_on:
            self._requests.passed_on, self._next_signal_time = requested, 0.0
            self._stop_signals = [(signal.SIGTERM, _KILL_SECONDS), (signal.SIGKILL, _KILL_SECONDS)]
            if self._requests.has_parent_ended():
                del self._stop_signals[0]
            saves = requested == "save" and file_size(self._task.rows) > self._initial_rows_size
            # An evaluator tests the last checkpoint in this time.
            if saves or (requested == "save" and self._task.job == "evaluator"):
                self._stop_signals.insert(0, (signal.SIGUSR1, self._task.grace_secs))
            self._state.write(state="saving" if saves else "ending")
        if not requested or not self._stop_signals or time.monotonic() < self._next_signal_time:
            return
        number, timeout = self._stop_signals.pop(0)
        self._next_signal_time = time.monotonic() + timeout
        if number == signal.SIGKILL:
            child_process.kill_tree(process)
        else:
            process.send_signal(number)

    def _check_heartbeat(self, process: subprocess.Popen) -> None:
        silent, learner = self._heartbeat.longest_silence()
        if (
            not self._task.stall_secs
            or silent < self._task.stall_secs
            or self._requests.passed_on
            or self._kill_reason
        ):
            return
        self._kill_reason = (
            f"{learner or 'it'} was killed: no heartbeat for {self._task.stall_secs:g} s"
        )
        self._output.write_message(self._kill_reason)
        child_process.kill_tree(process)

    # -- between two runs of the process

    def _seconds_to_restart(self, code: int) -> float | None:
        """Return the seconds until the process is restarted, or None if it is not restarted."""
        duration = time.monotonic() - self._started
        self._output.end_line()
        unsaved = (
            self._state.state.state == "saving" and self._requests.passed_on == "save" and code != 0
        )
        self._state.write(process=None, code=code)
        if unsaved:
            ended = child_process.describe_exit(code)
            self._kill_reason = f"it was asked to save, but {ended}; the last checkpoint is intact"
            self._state.write(state="failed", failure=self._describe_failure(code, "the run ends"))
            return None
        if self._requests.passed_on:
            self._state.write(state="stopped")
            return None
        if code == 0 and self._task.is_learners:
            self._state.write(state="ended")
            return None
        self._crashes = 1 if duration > _STABLE_SECONDS else self._crashes + 1
        self._has_worked |= bool(self._heartbeat.frames())
        gave_up = "" if self._has_worked else self._heartbeat.gave_up()
        self._last_crash = "" if self._has_worked else self._heartbeat.crash()
        # Flags with which learners have been running are right: a restart that is refused before
        # they report addresses found their port taken, for example, which may pass.
        can_help = code != USER_ERROR or (self._awaits_hosts and self._state.state.learner_hosts)
        restarts_again = bool(can_help) and not gave_up and self._crashes <= self._task.restarts
        wait = min(0.5 * 2 ** min(self._crashes - 1, 6), 30.0)
        follows = (
            f"it will be restarted in {wait:g} s"
            if restarts_again
            else self._describe_no_restart(code, gave_up)
        )
        failure = self._describe_failure(code, follows)
        restarts = self._state.state.restarts + restarts_again
        self._state.write(
            state="waits" if restarts_again else "failed", failure=failure, restarts=restarts
        )
        return wait if restarts_again else None

    def _describe_failure(self, code: int, follows: str) -> Failure:
        """Return a failure, for frontends; log it too."""
        why = self._kill_reason or f"it {child_process.describe_exit(code)}"
        lines = tuple(error_lines(list(self._output.lines)))
        self._output.write_message(f"{why}; {follows}")
        return Failure(time.time(), code, why, lines, follows)

    def _describe_no_restart(self, code: int, gave_up: str) -> str:
        if self._task.is_learners:
            return "the run ends"
        if gave_up:
            return f"it will not be restarted, since {gave_up}"
        if code == USER_ERROR:
            return "it will not be restarted, since a restart would not help"
        times = "once" if self._crashes == 1 else f"{self._crashes} times"
        return f"it crashed {times} and will not be restarted"

    def _wait_for_restart(self, seconds: float) -> bool:
        """Wait for the restart; return whether a stop request came first."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._requests.newest():
                return True
            time.sleep(0.1)
            self._state.write_if_due()
        return False


def _is_readable(pipe: int, seconds: float = 0.0) -> bool:
    return bool(select.select([pipe], [], [], seconds)[0])


def _open_closed_outputs() -> None:
    """Open stdout and stderr if they are closed: else a file opened later would get the output."""
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY)  # it takes the lowest free number


def main(path: Path) -> int:
    """Run the task in `path`; refuse it if a process of that name has a supervisor already."""
    _open_closed_outputs()
    task = from_json(Task, read_json(path))
    if task is None:
        print(f"{path} holds no task, or a supervisor has already taken it", file=sys.stderr)
        return USER_ERROR
    if file_lock.acquire(path.with_name("lock"), _LOCK_SECONDS) is None:
        print(f"{task.name} already has a supervisor", file=sys.stderr)
        return USER_ERROR
    return Supervisor(task).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
