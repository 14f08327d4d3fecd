"""The commands that follow a running run: `--attach` in a terminal, `--control` without one.

The controller, which is `--control`, is left behind by `--detach` and the key `d`. It follows the
run by the code of a frontend that is attached; its messages go to a log, and no terminal ends it.
"""

import signal
from collections.abc import Callable
from pathlib import Path

from impala_mm.config.messages import escape
from launcher.commands.manage import connected, read_rows, require_record
from launcher.follow import connect, controller, follow, status
from launcher.follow.console import say
from launcher.follow.followed_run import FollowedRun
from launcher.follow.process_table import state_label
from launcher.follow.recovery import Recovery
from launcher.hosts.mirror import mirror_folder
from launcher.plan import process_plan
from launcher.plan.request import Request, UserError
from launcher.supervise.process_output import ProcessOutput
from launcher.supervise.run_registry import Run


def attach_run(run: Run, request: Request) -> int:
    """Follow a run again and restart what fails, as the frontend that started it did."""
    record, config = require_record(run), request.launcher
    process_plan.common_environment(config)  # what is missing is said now, not at the first restart
    if not run.is_running() and not record.targets:
        raise UserError(
            f"{run.name} is not running: --status shows how it ended, --stop removes its record"
        )
    workers = read_rows(request, record)
    with connected(run, request) as (control, mirror):
        installation_of = connect.find_installations(workers, control.hosts, config.deploy, say)
        followed = FollowedRun(
            *(control, mirror, config, workers, installation_of, request.log_max_mb), say
        )
        if config.detach:
            return leave_controller(run, request, followed) or 0
        if config.controller != controller.NONE:
            _find_controller(run)
        follower = follow.Follower(control, Path(record.logdir))
        follower.install_signal_handlers()
        control.open_windows(say)
        say(f"{run.name}: {state_label(status.run_state(run))}; {follow.KEYS_HINT}")
        has_actors = any(worker.job == "actor" for worker in workers)
        if has_actors and process_plan.chooses_port(record.flags["learner_hosts"]):
            say(
                "note: the actors were not started, as the run's frontend ended before: --apply "
                "--workers_csv_path=PATH starts them"
            )
        recovery = Recovery(followed)

        def detach() -> int | None:
            return leave_controller(run, request, followed, lambda: follower.interrupted)

        with mirror_folder(config.mirror_logdir, run, control.hosts, record, say):
            return follower.follow(recovery, config.stop_secs, detach)


def _find_controller(run: Run) -> None:
    """Say whether the run has a controller; start it again if it is gone before the run's end."""
    entry = controller.read(run)
    if sentence := controller.describe(entry):
        say(sentence)
    if not controller.is_missing(entry):
        return
    try:
        log = Path(entry["log"])
        again = controller.ensure(run, entry["command"], entry["folder"], log, say) or {}
    except (controller.NotStarted, OSError) as error:
        say(f"could not start the controller again: {error}; this frontend restarts what fails")
    else:
        say(controller.describe(again))


def control_run(run: Run, request: Request) -> int:
    """Follow a run as its controller until it has ended, and return the exit code."""
    record, config = require_record(run), request.launcher
    process_plan.common_environment(config)
    log = Path(record.logdir) / controller.LOG_FILE
    output = ProcessOutput(str(log), request.log_max_mb)

    def write(message: str) -> None:
        output.write_message(escape(message))

    this = controller.Controller(run, request.command, log)
    workers = read_rows(request, record)
    with connected(run, request) as (control, mirror):
        installation_of = connect.find_installations(workers, control.hosts, config.deploy, write)
        followed = FollowedRun(
            *(control, mirror, config, workers, installation_of, request.log_max_mb), write
        )
        follower = follow.Follower(control, Path(record.logdir), write, shows_log=False)
        follower.install_signal_handlers()
        for number in (signal.SIGINT, signal.SIGHUP):  # not SIG_IGN, which processes would inherit
            signal.signal(number, lambda *_: None)
        followed.holds_lock()
        this.begin(control.hosts.remote_nodes)
        write(f"controls the run {run.name}")
        if sentence := controller.describe_logins(controller.read(run)):
            write(sentence)
        with mirror_folder(config.mirror_logdir, run, control.hosts, record, write):
            code = follower.follow(Recovery(followed), config.stop_secs)
        if not follower.is_terminated:
            write("the run has ended, and so has its controller")
            this.end("the run has ended")
    return code


def leave_controller(
    run: Run,
    request: Request,
    followed: FollowedRun,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> int | None:
    """Detach from a run, and leave a controller with it; return the frontend's exit code.

    The result is None if Ctrl-C was pressed before the controller was ready.
    """
    record, code = run.record, 0
    if record and request.launcher.controller != controller.NONE:
        followed.release_lock()
        try:
            command = controller.command_of(request.command, run.name)
            log = Path(record.logdir) / controller.LOG_FILE
            entry = controller.ensure(run, command, ".", log, say, is_interrupted)
            if entry is None:
                return None
            say(f"{controller.describe(entry)}; log: {entry['log']}")
            if sentence := controller.describe_logins(entry):
                say(sentence)
        except (controller.NotStarted, OSError) as error:
            say(f"error: the controller could not be started: {error}")
            code = 1
    say(follow.detached_message(run))
    return code
