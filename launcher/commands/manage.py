"""What may be done with a run that was started, from any terminal of its user."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.commands.apply import update_actors
from launcher.node.run_registry import Record, Run, run_names
from launcher.node.task import FINAL_STATES, LEARNERS
from launcher.plan.request import Request, UserError, read_workers
from launcher.plan.workers_csv import read
from launcher.remote.state_mirror import StateMirror
from launcher.running import connect, follow, status
from launcher.running.recovery import Recovery
from launcher.running.run_control import RunControl
from launcher.transfer import fetch
from launcher.transfer.mirror import mirror_folder

_NOTICE_SECONDS = 5.0  # of waiting, before it is said for what


def require_record(run: Run) -> Record:
    """What was started under this name; refused where nothing was."""
    record = run.record
    if record is None:
        others = [name for name in run_names() if name != run.name]  # what is left of it is no run
        known = f"; there are {', '.join(others)} (--tmux_sess=NAME)" if others else ""
        raise UserError(f"there is no run called {run.name}{known}")
    return record


@contextlib.contextmanager
def connected(
    run: Run, request: Request, log: str = ""
) -> Iterator[tuple[RunControl, StateMirror]]:
    """With the other hosts of a run, if it has any; `log`: of this process is copied, too."""
    csv = request.launcher.workers_csv_path if "workers_csv_path" in request.given else ""
    control, mirror = connect.reconnect(run, require_record(run), csv, request.settings, log)
    try:
        yield control, mirror
    finally:
        connect.disconnect(run, control.hosts)


def show_status(run: Run, request: Request) -> int:
    """Its status."""
    record = require_record(run)
    unseen = record.targets and all(map(run.why_away, record.targets))  # no frontend keeps copies
    with connected(run, request) if unseen else contextlib.nullcontext():
        status.show_status(run, request.launcher.json)
    return 0


def fetch_files(run: Run, request: Request) -> int:
    """Logs, and what learners saved, from other hosts."""
    with connected(run, request) as (control, _):
        return fetch.fetch_run(run, control.hosts, require_record(run), print)


def apply_csv(run: Run, request: Request) -> int:
    """Actors, as the CSV has them now."""
    require_record(run)
    if "workers_csv_path" not in request.given:
        raise UserError("--apply needs the changed CSV: --workers_csv_path=PATH")
    workers = read_workers(request)
    with connected(run, request) as (control, _):
        update_actors(control, request.launcher, workers, request.flags, request.log_max_mb)
    return 0


def stop_run(run: Run, request: Request) -> int:
    """Saves and ends exactly what the run started; what it left behind is put away."""
    record, code = require_record(run), 0
    with connected(run, request) as (control, _):
        state = status.run_state(run)
        if state == "stale":
            control.end_remaining(print)
            print(f"{run.name} ended when this machine did: it is forgotten; its folder is whole")
        elif not run.is_running():
            print(f"{run.name} is not running ({state}); it is forgotten, its folder is whole")
        else:
            code = _end_run(run, control, request.launcher.stop_secs)
        print(f"all of it in {record.logdir}")
        if code and any(run.why_away(host_id) for host_id in record.targets):
            return code  # the same again reaches those that were away
        with run.locked(wait=True):
            if run.record == record:  # nobody else put it away, or started it again
                control.forget(record, is_stale=state == "stale")
    return code


def _end_run(run: Run, control: RunControl, timeout: float) -> int:
    """The exit code."""
    print(f"{run.name}: the learners save and stop, then the others", flush=True)
    began, code = time.monotonic(), 0
    control.request_stop("save")
    _wait_for_learners(run, timeout)
    unreached = control.end_remaining(print)
    learners = run.states().get(LEARNERS, {})
    if learners.get("state") == "failed":
        code = 1
        print(follow.failure_message(learners, 1))
    last_line = f" ({learners['last']})" if learners.get("last") else ""
    print(f"{run.name} has ended, after {time.monotonic() - began:.1f} s{last_line}")
    if unreached:
        code = 1
        print(follow.unreached_message(unreached))
    return code


def _wait_for_learners(run: Run, timeout: float) -> None:
    """As long as their supervisor has patience with them, it lives; their host may not."""
    away_since = noticed = 0.0
    while (state := run.states().get(LEARNERS, {"state": "lost"})["state"]) not in (
        *FINAL_STATES,
        "lost",
    ):
        away_since = 0.0 if state != "away" else away_since or time.monotonic()
        if away_since and not noticed and time.monotonic() - away_since > _NOTICE_SECONDS:
            noticed = time.monotonic()
            print(f"the learners' host does not answer; it is asked for {timeout:g} s", flush=True)
        if away_since and time.monotonic() - away_since > timeout:
            return
        time.sleep(0.1)


def show_log(run: Run, request: Request) -> int:
    """Prints a process's log and what is appended to it, until the run is over or Ctrl-C."""
    name = request.launcher.logs
    record = require_record(run)
    with connected(run, request, log=name):
        states = run.states()
        if name not in states:
            raise UserError(f"--logs={name}: there are {', '.join(states)}")
        if "log" not in states[name]:
            raise UserError(f"--logs={name}: it has said nothing yet")
        path = Path(states[name]["log"])
        if record.host_id_of(name) and not (record.shared and name == LEARNERS):
            path = Path(record.logdir) / f"{name}.log"  # its copy
        return _print_log(run, path)


def _print_log(run: Run, path: Path) -> int:
    tail = follow.LogTail(path)
    try:
        while True:
            over = not run.is_running()
            for line in tail.lines():
                print(line, flush=True)
            if over:
                return 0
            time.sleep(0.2)
    except KeyboardInterrupt:
        return 130


def attach_run(run: Run, request: Request) -> int:
    """Follows it again, and mends what it can, as the frontend that started it did."""
    record, config = require_record(run), request.launcher
    if not run.is_running() and not record.targets:
        raise UserError(f"{run.name} is not running: --status shows it, --stop forgets it")
    csv = request.launcher.workers_csv_path if "workers_csv_path" in request.given else ""
    workers, _ = read(csv or record.csvs[0])
    with connected(run, request) as (control, mirror):
        installation_of = connect.find_installations(workers, control.hosts, config.deploy, print)
        follower = follow.Follower(control, Path(record.logdir))
        follower.install_signal_handlers()
        print(
            f"{run.name}: {status.run_state(run)}; `d` leaves it running, Ctrl-C saves and stops it"
        )
        recovery = Recovery(
            *(control, mirror, config, workers, installation_of, request.log_max_mb), print
        )
        with mirror_folder(config.mirror_logdir, run, control.hosts, record, print):
            return follower.follow(recovery, config.stop_secs)
