"""Runs learners and actors of this machine in the foreground of a terminal.

`experiment.py` calls it when no --job_name is given. Each process has a supervisor of its own
(`supervisor`), as in a run of the frontend; their state folder is temporary and belongs to this run
alone. No process of the run outlives the calling process: its supervisors watch it, and kill what
they run when it is gone.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.supervise import child_process, procfs, programs
from launcher.supervise.json_files import write_json
from launcher.supervise.process_output import FATAL, write_to_terminal
from launcher.supervise.process_state import ActorWatch, Failure, State
from launcher.supervise.run_registry import ProcessEntry, Record, Run, boot_id, foreground_prefix
from launcher.supervise.task import (
    EVALUATOR,
    FINAL_STATES,
    HEARTBEAT,
    LEARNERS,
    USER_ERROR,
    Task,
    with_learner_hosts,
)

MAX_CRASHES = 20  # crashes in a row after which an actor is not restarted
_CHECK_SECONDS = 0.2  # seconds between two looks at signals and learners
_HOSTS_CHECK_SECONDS = 0.05  # seconds between two looks for the learners' addresses
_STATE_SECONDS = 0.5  # seconds between two looks at the actors' states
_END_SECONDS = 3.0  # seconds that actors have for their end once the learners have ended


class LocalRun(NamedTuple):
    """The processes of a run on this machine."""

    learners: list[str]  # the command of the learner, or of the mpirun of several learners
    # Commands by name: actor-0 and so on, or the evaluator of a run that only learns.
    others: Mapping[str, list[str]]
    environment: Mapping[str, str]  # all variables of every process
    folder: Path  # the run's folder: actors' logs, and metrics.jsonl
    log_max_mb: float  # size of an actor's log in MiB before a new one is begun
    printable: Callable[[str], str]  # makes a line of a log safe for a terminal


def run(local_run: LocalRun, signals: Sequence[int]) -> int | None:
    """Run learners and actors until the learners have ended; return the learners' exit code.

    `signals` is a list to which the caller's signal handlers append: the first signal saves and
    stops the run, the second ends it at once. The result is None if the run ended as they asked.
    """
    child_process.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix=foreground_prefix()) as folder:
        try:
            return _Foreground(local_run, Path(folder), signals).run()
        finally:
            child_process.kill_orphans()


class _Foreground:
    """A run on this machine, as the process in the foreground of its terminal sees it."""

    def __init__(self, local_run: LocalRun, folder: Path, signals: Sequence[int]):
        self._local_run, self._folder, self._signals = local_run, folder, signals
        self._run = Run(folder.name, folder.parent)  # as a dashboard finds it, too
        self._logdir = local_run.folder.absolute()
        self._record = Record(
            name=self._logdir.name,
            id="",
            time=time.time(),
            boot=boot_id(),
            logdir=str(self._logdir),
            socket="",
            processes=[],
            flags={},
            learners=[],
            next_actor=0,
        )
        self._heartbeat = Path(local_run.environment.get(HEARTBEAT) or folder / LEARNERS / "beat")
        self._reported: dict[str, float] = {}  # by process: the time of its last reported failure
        self._mistakes: dict[str, str] = {}  # user's mistakes, and the first actor that found each
        self._stop_requests = 0
        self._actor_watch = ActorWatch()
        self._ends_without_actors = False

    def run(self) -> int | None:
        """Start all supervisors and wait for the learners' supervisor.

        The actors' supervisors start as soon as the learners' addresses are known.
        """
        supervisors = self._start([self._make_task(LEARNERS, self._local_run.learners)])
        next_look, addresses = 0.0, tuple[str, ...]()
        while supervisors[0].poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # learners are running
                supervisors[0].wait(_CHECK_SECONDS if addresses else _HOSTS_CHECK_SECONDS)
            if len(self._signals) > self._stop_requests:
                self._request_stop(supervisors[0])
            if not addresses and not self._stop_requests:
                addresses = self._run.state_of(LEARNERS).learner_hosts
                supervisors += self._start(self._other_tasks(addresses)) if addresses else []
            if not self._stop_requests and time.monotonic() >= next_look:
                next_look = time.monotonic() + _STATE_SECONDS
                self._report_actors()
        until = time.monotonic() + _END_SECONDS
        for name, supervisor in zip(self._local_run.others, supervisors[1:], strict=False):
            # They end because their leader has ended, an evaluator once it has tested the last
            # checkpoint; `run` kills those that do not.
            while supervisor.poll() is None and (name == EVALUATOR or time.monotonic() < until):
                if len(self._signals) > self._stop_requests:
                    break
                time.sleep(_HOSTS_CHECK_SECONDS)
        return self._result(child_process.exit_code(supervisors[0]))

    def _start(self, tasks: Sequence[Task]) -> list[subprocess.Popen]:
        """Record these processes beside those of before, and start their supervisors."""
        for task in tasks:
            (self._folder / task.name).mkdir(mode=0o700)
            write_json(self._folder / task.name / "task.json", task._asdict())
            entry = ProcessEntry(task.name, task.job, task.host, log=task.log)
            self._record.processes.append(entry)
        self._run.write_record(self._record)
        return [
            programs.start_supervisor(
                self._folder / task.name / "task.json", shows_output=not task.log
            )
            for task in tasks
        ]

    def _other_tasks(self, addresses: Sequence[str]) -> list[Task]:
        commands = self._local_run.others.items()
        return [self._make_task(n, with_learner_hosts(each, addresses)) for n, each in commands]

    def _make_task(self, name: str, command: list[str]) -> Task:
        is_learners, job = name == LEARNERS, name.partition("-")[0]
        beat = str(self._heartbeat if is_learners else self._folder / name / "beat")
        return Task(
            name=name,
            job="learner" if is_learners else job,
            host="localhost",
            command=command,
            environment={**self._local_run.environment, "PYTHONUNBUFFERED": "1", HEARTBEAT: beat},
            workdir=os.getcwd(),
            folder=str(self._folder),
            log=str(self._log(name)) if job == "actor" else "",  # a learner keeps its own log
            log_max_mb=self._local_run.log_max_mb,
            lease_secs=None,
            rows=str(self._logdir / "metrics.jsonl") if is_learners else "",
            restarts=0 if is_learners else MAX_CRASHES - 1,
            stall_secs=0.0,
            # A save takes as long as it takes (30 years, since JSON has no infinity): the user can
            # always ask a second time.
            grace_secs=1e9,
            parent=procfs.identify(os.getpid()),
        )

    def _log(self, name: str) -> Path:
        return self._logdir / f"{name}.log"

    def _request_stop(self, supervisor: subprocess.Popen) -> None:
        """Pass a stop request of the user on to the supervisors.

        `supervisor` is the learners', whose end ends the others.
        """
        self._stop_requests = len(self._signals)
        first = self._stop_requests == 1
        try:
            (self._folder / "stop").write_text("save" if first else "now")
        except OSError:  # the disk may be full; supervisors react to signals, too
            for number in [signal.SIGTERM] if first else [signal.SIGTERM, signal.SIGINT]:
                supervisor.send_signal(number)
        _print(
            "the run saves and stops; Ctrl-C again ends it at once"
            if first
            else "all processes end now"
        )

    def _report_actors(self) -> None:
        """Print the failures of actors that were not printed yet; end the run if all have failed.

        Before the first heartbeat of a learner none is printed: what is wrong with the flags of
        all processes is printed once, by the learner.
        """
        if not any(self._heartbeat.parent.glob(f"{self._heartbeat.name}*")):
            return
        states = self._run.states()
        for name, state in states.items():
            failure = state.failure
            if failure and name != LEARNERS and failure.time != self._reported.get(name):
                is_first = not self._reported
                self._reported[name] = failure.time
                lines = [self._local_run.printable(line) for line in failure.lines]
                failure = failure._replace(lines=tuple(lines))
                mistake = _last_line(lines).removeprefix(f"[{name.replace('-', ' ')}] ")
                first = self._mistakes.setdefault(mistake, name)
                _print(_describe_failure(state, failure, self._log(name), first))
                if is_first and lines and lines[0].startswith(("Traceback", FATAL)):
                    for line in lines:
                        _print(f"    {line}")
        if self._actor_watch.have_all_failed(states.values()) and not self._ends_without_actors:
            self._ends_without_actors = True
            _print(f"the run ends, since no actor is left; {self._resume_hint()}")
            with contextlib.suppress(OSError):  # the disk may be full; Ctrl-C still ends the run
                (self._folder / "stop").write_text("save")

    def _result(self, code: int) -> int | None:
        """Return the learners' exit code; None if they ended because of a stop request."""
        state = self._run.state_of(LEARNERS)
        if self._ends_without_actors:
            return code or self._code_of_actors()
        if state.state == "stopped" or (self._signals and state.supervisor is None):
            return None
        if state.state not in FINAL_STATES:
            if code == 0:  # the last state could not be written: the disk is full
                return None if self._signals else 0
            ended = child_process.describe_exit(code)
            _print(f"the learners' supervisor {ended}; {self._resume_hint()}")
            return code or 1
        why = state.failure.why if state.failure else ""
        if self._stop_requests:
            _print(f"learners failed: {why}")
        elif state.code and state.code > 128:  # no learner could print the reason
            _print(f"learners failed: {why}; {self._resume_hint()}")
        return state.code

    def _code_of_actors(self) -> int:
        """Return the exit code of a run without actors: that of a mistake if all have found one."""
        states = [state for name, state in self._run.states().items() if name != LEARNERS]
        codes = {state.failure.code for state in states if state.failure}
        return USER_ERROR if codes == {USER_ERROR} else 1

    def _resume_hint(self) -> str:
        folder = self._local_run.folder
        saved = any((folder / "checkpoints").glob("[0-9]*"))
        what = "resume from the last checkpoint" if saved else "resume it"
        return f"the same flags with --logdir={folder} {what}"


def _last_line(lines: Sequence[str]) -> str:
    """Return the line of a failed process that says most: the last one without details."""
    lines = [line for line in lines if not line.startswith(" ")] or ["it printed nothing"]
    return lines[0 if lines[0].startswith(FATAL) else -1].strip()


def _describe_failure(state: State, failure: Failure, log: Path, first: str) -> str:
    """Return a line about an actor that crashed; `first` is the first one with its last line."""
    name, last = state.name, _last_line(failure.lines)
    if state.state != "failed":
        return f"{name} failed: {failure.why}; {failure.next} (last line: {last[:200]})"
    if failure.code == USER_ERROR:
        what = f": {last}" if first == name else f" as {first} did"
        return f"{name} failed{what}; {failure.next}; log: {log}"
    # The learner has printed why an actor gave up.
    follows = failure.next.removeprefix("it ").partition(", since ")[0]
    return f"{name} {follows}; log: {log}"


def _print(message: str) -> None:
    """Print a line, unless the terminal is gone or blocked."""
    write_to_terminal(f"[supervisor] {message}\n".encode(errors="backslashreplace"))
