"""The controller of a run: `--control` is it, `--detach` and the key `d` leave it behind.

It follows the run by the code of a frontend that is attached. Its messages go to a log, and no
terminal ends it. It reaches the other hosts by SSH, as a frontend does, or on a host of the CSV by
orders over TLS.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from impala_mm.config.messages import escape
from launcher.commands.manage import connected, read_rows, require_record
from launcher.node.callbacks import Say
from launcher.node.controlled_node import ORDERS, read_term
from launcher.node.process_output import ProcessOutput
from launcher.node.run_registry import Record, Run
from launcher.plan import process_plan
from launcher.plan.request import Request, UserError
from launcher.plan.workers_csv import Worker
from launcher.remote import order_link
from launcher.remote.hosts import Hosts, host_id_of
from launcher.remote.remote_node import HostUnavailable, OperationFailed
from launcher.running import connect, controlled_hosts, controller, follow
from launcher.running.console import say
from launcher.running.followed_run import FollowedRun
from launcher.running.ordered_starts import OrderedStarts, learner_rows
from launcher.running.recovery import Recovery
from launcher.running.run_control import RunControl
from launcher.transfer.mirror import mirror_folder


def control_run(run: Run, request: Request) -> int:
    """Follow a run as its controller until it has ended, and return the exit code."""
    record, config = require_record(run), request.launcher
    process_plan.common_environment(config)
    log = Path(record.logdir) / controller.LOG_FILE
    output = ProcessOutput(str(log), request.log_max_mb)

    def write(message: str) -> None:
        output.write_message(escape(message))

    this = controller.Controller(run, request.command, log, read_term(run.folder / ORDERS))
    has_orders = (run.folder / ORDERS).exists()
    reach = _reach_by_orders if has_orders else _reach_by_ssh
    with reach(run, request, record, write) as followed:
        follower = follow.Follower(followed.control, Path(record.logdir), write, shows_log=False)
        follower.install_signal_handlers()
        for number in (signal.SIGINT, signal.SIGHUP):  # not SIG_IGN, which processes would inherit
            signal.signal(number, lambda *_: None)
        followed.holds_lock()
        this.begin(followed.hosts.remote_nodes)
        write(f"controls the run {run.name}")
        if sentence := controller.describe_logins(controller.read(run)):
            write(sentence)
        with mirror_folder(config.mirror_logdir, run, followed.hosts, record, write):
            code = follower.follow(Recovery(followed), config.stop_secs)
        if not follower.is_terminated:
            write("the run has ended, and so has its controller")
            this.end("the run has ended")
            if followed.orders:
                followed.orders.end()
    return code


@contextlib.contextmanager
def _reach_by_ssh(run: Run, request: Request, record: Record, write: Say) -> Iterator[FollowedRun]:
    config = request.launcher
    workers = read_rows(request, record)
    with connected(run, request) as (control, mirror):
        installation_of = connect.find_installations(workers, control.hosts, config.deploy, write)
        yield FollowedRun(
            *(control, mirror, config, workers, installation_of, request.log_max_mb), write
        )


@contextlib.contextmanager
def _reach_by_orders(
    run: Run, request: Request, record: Record, write: Say
) -> Iterator[FollowedRun]:
    hosts = Hosts(run.name, connect.targets_of(record), request.settings, order_link.opener(run))
    for sentence in hosts.connect(write, lambda host_id: []).values():
        write(sentence)
    mirror = connect.mirror_states(run, record, hosts, copies=False)
    rows = learner_rows(record)  # the plans of all processes are on the hosts
    try:
        yield FollowedRun(
            *(RunControl(run, hosts), mirror, request.launcher, rows, _has_no_installation),
            *(request.log_max_mb, write, OrderedStarts(run, hosts)),
        )
    finally:
        connect.disconnect(run, hosts)


def _has_no_installation(row: Worker) -> process_plan.Installation:
    raise AssertionError(f"a controller without SSH starts no row: {row.ip}")


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
            if controlled_hosts.place_of(run):
                entry = followed.start_controller()
            else:
                command = controller.command_of(request.command, run.name)
                log = Path(record.logdir) / controller.LOG_FILE
                started = controller.ensure(run, command, ".", log, say, is_interrupted)
                if started is None:
                    return None
                entry = started
            where = f"{entry['place']}:" if entry.get("place") else ""
            say(f"{controller.describe(entry)}; log: {where}{entry['log']}")
            if sentence := controller.describe_logins(entry):
                say(sentence)
        except (controller.NotStarted, HostUnavailable, OperationFailed, OSError) as error:
            say(f"error: the controller could not be started: {error}")
            code = 1
    say(follow.detached_message(run))
    return code


def find_place(request: Request, workers: Sequence[Worker]) -> str:
    """Return the host id of the host that is to have the controller; empty: this machine, or none.

    Raises UserError if no row has this host, or the host cannot reach the others.
    """
    place = request.launcher.controller
    if place in (controller.HERE, controller.NONE):
        return ""
    ids = {row.line: host_id_of(row) for row in workers}
    found = [ids[row.line] for row in workers if place in (row.ip, ids[row.line])]
    if not found:
        hosts = ", ".join(dict.fromkeys(row.ip for row in workers))
        raise UserError(
            f"--controller={place}: no row of the CSV has this host; write one of its hosts "
            f"({hosts}), {controller.HERE} (this machine) or {controller.NONE}"
        )
    here = [str(row.line) for row in workers if not ids[row.line]]
    if here:
        raise UserError(
            f"--controller={place}: a controller on a host reaches no process of this machine, "
            f"which the rows {', '.join(here)} of the CSV have: leave --controller out, or name "
            f"other hosts there"
        )
    return found[0]
