"""The commands for a run that was started already; its user may call them from any terminal."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from impala_mm.config.messages import escape, log_line
from launcher.follow import connect, controller, follow, status
from launcher.follow.connected_run import REPEAT_SECONDS, ConnectedRun
from launcher.follow.console import check_reader, say
from launcher.follow.follow import Follower
from launcher.follow.followed_run import RECOVERS_FILE, FollowedRun
from launcher.follow.recovery import WINDOWS_REQUEST
from launcher.follow.status import state_label
from launcher.hosts import fetch
from launcher.hosts.hosts import Hosts
from launcher.plan import process_plan
from launcher.plan.request import Request, UserError
from launcher.plan.workers_csv import Worker, read
from launcher.supervise import file_lock
from launcher.supervise.callbacks import Say
from launcher.supervise.log_tail import LogTail, for_terminal
from launcher.supervise.process_output import ProcessOutput
from launcher.supervise.process_state import Failure
from launcher.supervise.run_registry import Record, Run, run_names
from launcher.supervise.task import LEARNERS

_NOTICE_SECONDS = 5.0  # seconds of waiting before a message says for what


def require_record(run: Run) -> Record:
    """Return the record of a run. Raises UserError if there is no run of this name."""
    record = run.record
    if record is None:
        others = [name for name in run_names() if name != run.name]  # the rest is no run any more
        known = f"; name another by --tmux_sess: {', '.join(others)}" if others else ""
        raise UserError(f"there is no run named {run.name}{known}")
    return record


@contextlib.contextmanager
def connected(
    run: Run, request: Request, log: str = "", workers: Sequence[Worker] = (), say: Say = say
) -> Iterator[FollowedRun]:
    """Connect to the run's hosts for the time of a `with` block.

    The learners' log and metrics are copied meanwhile, and the log of the process `log`. Earlier
    runs that could not be ended on these hosts are ended now.
    """
    record, config = require_record(run), request.launcher
    csv = config.workers_csv_path if "workers_csv_path" in request.given else ""
    hosts = Hosts(run.name, connect.targets_of(record, csv), request.ssh_settings)
    hosts.connect(_say_on_stderr, record.pythons)
    followed = FollowedRun(run, hosts, config, workers, _log_max_mb(request, record), say)
    try:
        followed.watch_hosts(log)
        followed.end_pending(_say_on_stderr)
        yield followed
    finally:
        followed.disconnect()


def _log_max_mb(request: Request, record: Record) -> float:
    """Return --log_max_mb: that of this command, or of the run's start."""
    known = record.flags | request.flags
    return float(known.get("log_max_mb", request.experiment.log_max_mb))


def _say_on_stderr(line: str) -> None:
    """Print to stderr: stdout may be read by a program, such as the JSON of `--status`."""
    print(escape(line), file=sys.stderr)


def read_rows(request: Request, record: Record) -> list[Worker]:
    """Return the rows of the CSV that is given, or of the run's own.

    Raises UserError, BadCsv.
    """
    if "workers_csv_path" in request.given:
        return read(request.launcher.workers_csv_path)[0]
    path = record.csvs[0]
    if not Path(path).exists():
        raise UserError(
            f"{path}, with which {record.name} was started, is gone: give its rows by "
            f"--workers_csv_path=FILE"
        )
    return read(path)[0]


def attach_run(run: Run, request: Request) -> int:
    """Follow a run again and restart what fails, as the frontend that started it did."""
    record, config = require_record(run), request.launcher
    process_plan.common_environment(config)  # what is missing is said now, not at the first restart
    if not run.is_running() and not record.targets:
        raise UserError(
            f"{run.name} is not running: --status shows how it ended, --stop removes its record"
        )
    workers = read_rows(request, record)
    with connected(run, request, workers=workers) as followed:
        followed.find_installations(workers)
        follower = Follower(followed, Path(record.logdir), request.command)
        follower.install_signal_handlers()
        if config.detach:
            return follower.detach() or 0
        if config.controller != controller.NONE:
            _find_controller(run)
        followed.open_windows()
        say(f"{run.name}: {state_label(status.run_state(run))}; {follow.KEYS_HINT}")
        has_actors = any(worker.job == "actor" for worker in workers)
        if has_actors and process_plan.chooses_port(record.flags["learner_hosts"]):
            say(
                "note: the actors were not started, as the run's frontend ended before: --apply "
                "--workers_csv_path=PATH starts them"
            )
        return follower.follow()


def _find_controller(run: Run) -> None:
    """Say whether the run has a controller; start it again if it is gone before the run's end."""
    report = controller.read(run)
    if report is None:
        return
    say(report.describe())
    if not report.is_missing:
        return
    try:
        if again := controller.ensure(run, report.command, report.folder, Path(report.log), say):
            say(again.describe())
    except (controller.NotStarted, OSError) as error:
        say(f"could not start the controller again: {error}; this frontend restarts what fails")


def control_run(run: Run, request: Request) -> int:
    """Follow a run as its controller until it has ended, and return the exit code.

    It follows the run by the code of a frontend that is attached; its messages go to a log, and no
    terminal ends it.
    """
    record, config = require_record(run), request.launcher
    process_plan.common_environment(config)
    log = Path(record.logdir) / controller.LOG_FILE
    output = ProcessOutput(str(log), _log_max_mb(request, record))

    def write(message: str) -> None:
        output.write_message(escape(message))

    this = controller.Controller(run)
    workers = read_rows(request, record)
    with connected(run, request, workers=workers, say=write) as followed:
        followed.find_installations(workers)
        follower = Follower(followed, Path(record.logdir), shows_log=False)
        follower.install_signal_handlers()
        for number in (signal.SIGINT, signal.SIGHUP):  # not SIG_IGN, which processes would inherit
            signal.signal(number, lambda *_: None)
        followed.holds_lock()
        this.begin(request.command, log)
        write(f"controls the run {run.name}")
        if sentence := followed.describe_logins():
            write(sentence)
        code = follower.follow()
        if not follower.is_terminated:
            write("the run has ended, and so has its controller")
            this.end()
    return code


def show_status(run: Run, request: Request) -> int:
    """Show the status of a run as JSON, or as a live table; the latter opens closed windows."""
    record = require_record(run)
    if not file_lock.is_held(run.folder / RECOVERS_FILE):  # it may have been killed just now
        connect.forget_contacts(run, list(record.targets))
    # Without a connected frontend the copies of the hosts' states are old.
    unseen = record.targets and all(map(run.why_away, record.targets))
    with connected(run, request) if unseen else contextlib.nullcontext() as followed:
        if not request.launcher.json:
            if record.targets and not unseen:  # the connected frontend opens those on other hosts
                (run.folder / WINDOWS_REQUEST).touch(mode=0o600)
            here = ConnectedRun(run, Hosts(run.name, {}, request.ssh_settings))
            (followed or here).open_windows()
        status.show_status(run, request.launcher.json)
    return 0


def fetch_files(run: Run, request: Request) -> int:
    """Download the logs of all processes, and the learners' folder, from other hosts."""
    with connected(run, request) as followed:
        return fetch.fetch_run(run, followed.hosts, require_record(run), say)


def save_now(run: Run, request: Request) -> int:
    """Let the learners of a running run save a checkpoint."""
    record = require_record(run)
    log = next(p.log for p in record.processes if p.name == LEARNERS)
    with connected(run, request) as followed:
        if status.run_state(run) != "running":
            raise UserError(f"{run.name} has no learners that are running: --status shows why")
        folder = str(Path(log).parent)
        followed.hosts.call(record.host_id_of(LEARNERS), "request_checkpoint", folder=folder)
    say(f"{run.name}: the learners save a checkpoint; results: {record.logdir}")
    return 0


def stop_run(run: Run, request: Request) -> int:
    """Save and stop every process of a run, its controller last; the run's folder stays."""
    report = controller.read(run)
    code = _stop_run(run, request)
    controller.end(report)
    return code


def _stop_run(run: Run, request: Request) -> int:
    """Save and stop every process of a run, and remove its state."""
    record, code = require_record(run), 0
    with connected(run, request) as followed:
        state = status.run_state(run)
        if state == "elsewhere":
            raise UserError(run.started_on(record.elsewhere))
        if state != "stale" and run.is_running():
            code = _end_run(followed, record)
        else:
            why = f"was not running (state: {state_label(state)})"
            if state == "stale":
                followed.end_remaining()
                why = "ended when this machine rebooted"
            say(f"{run.name} {why}; removed its record; results: {record.logdir}")
        if code and any(run.why_away(host_id) for host_id in record.targets):
            return code  # another --stop can reach the hosts that were unreachable
        with run.locked(wait=True):
            if run.record == record:  # no other frontend removed or restarted it
                followed.forget(record, is_stale=state == "stale")
    return code


def _end_run(followed: FollowedRun, record: Record) -> int:
    """Stop a running run, print how it ended, and return the exit code."""
    run = followed.run
    say(f"{run.name}: saving and stopping the learners, then all other processes")
    began, code = time.monotonic(), 0
    followed.request_stop("save")
    _wait_for_learners(followed)
    unreached = followed.end_remaining()
    learners = run.state_of(LEARNERS)
    if learners.state == "failed":
        code = 1
        say(follow.failure_message(learners, learners.failure or Failure(), 1))
    if learners.last:
        say(log_line(learners.last))
    results = f"; results: {record.logdir}" if record.logdir not in learners.last else ""
    say(f"{run.name}: stopped in {time.monotonic() - began:.1f} s{results}")
    if unreached:
        code = 1
        say(follow.unreached_message(unreached))
    return code


def _wait_for_learners(followed: FollowedRun) -> None:
    """Wait until the learners have ended, or their host was unreachable for `--stop_secs`.

    Learners that do not end are killed by their supervisor after its own timeout.
    """
    timeout = followed.config.stop_secs
    away_since = noticed = 0.0
    requested = time.monotonic()
    while not (learners := followed.learners).has_ended:
        now = time.monotonic()
        away_since = 0.0 if learners.state != "away" else away_since or now
        if away_since and not noticed and now - away_since > _NOTICE_SECONDS:
            noticed = now
            host_id = require_record(followed.run).host_id_of(LEARNERS)
            say(
                f"the learners' host {host_id} is unreachable; trying to reconnect for "
                f"{timeout:g} s",
            )
        if away_since and now - away_since > timeout:
            return
        if followed.hosts.remote_nodes and now - requested > REPEAT_SECONDS:
            requested = now
            followed.request_stop("save")
        time.sleep(0.1)


def show_log(run: Run, request: Request) -> int:
    """Print a process's log, and follow it until the run has ended or Ctrl-C is pressed."""
    name = request.launcher.logs
    record = require_record(run)
    with connected(run, request, log=name):
        states = run.states()
        if name not in states:
            raise UserError(f"--logs={name}: no such process; choose one of {', '.join(states)}")
        if not states[name].log:
            raise UserError(f"--logs={name}: the process has not printed anything yet; try later")
        path = Path(states[name].log)
        if record.host_id_of(name) and not (record.shared and name == LEARNERS):
            path = Path(record.logdir) / f"{name}.log"  # the copy on this machine
        return _print_log(run, path)


def _print_log(run: Run, path: Path) -> int:
    tail = LogTail(path)
    try:
        while True:
            over = not run.is_running()
            for line in tail.lines():
                print(for_terminal(line), flush=True)
            check_reader()
            if over:
                return 0
            time.sleep(0.2)
    except KeyboardInterrupt:
        return 130
