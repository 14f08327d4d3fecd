"""`--attach`: follows a run again; starts its controller again if that is gone."""

from pathlib import Path

from launcher.commands.control import leave_controller
from launcher.commands.manage import connected, read_rows, require_record
from launcher.node.run_registry import Run
from launcher.plan import process_plan
from launcher.plan.request import Request, UserError
from launcher.running import connect, controller, follow, status
from launcher.running.console import say
from launcher.running.followed_run import FollowedRun
from launcher.running.process_table import state_label
from launcher.running.recovery import Recovery
from launcher.transfer.mirror import mirror_folder


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
