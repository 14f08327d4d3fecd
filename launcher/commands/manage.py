"""What may be done with a run that was started, from any terminal of its user."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.commands import apply as change
from launcher.node.run_registry import Record, Run, names
from launcher.node.task import FINAL, LEARNERS
from launcher.plan.request import Asked, Refused, read_csv
from launcher.plan.workers_csv import read
from launcher.remote.state_mirror import Mirror
from launcher.running import connect, follow, status
from launcher.running.recovery import Recovery
from launcher.running.run_control import Everywhere
from launcher.transfer import fetch
from launcher.transfer import mirror as mirroring

_SILENT_SECONDS = 5.0  # of waiting, before it is said for what


def known(run: Run) -> Record:
    """What was started under this name; refused where nothing was."""
    record = run.record
    if record is None:
        there = [name for name in names() if name != run.name]  # what is left of it is no run
        others = f"; there are {', '.join(there)} (--tmux_sess=NAME)" if there else ""
        raise Refused(f"there is no run called {run.name}{others}")
    return record


@contextlib.contextmanager
def in_touch(run: Run, asked: Asked, log: str = "") -> Iterator[tuple[Everywhere, Mirror]]:
    """With the other hosts of a run, if it has any; `log`: of this process is copied, too."""
    csv = asked.launcher.workers_csv_path if "workers_csv_path" in asked.given else ""
    everywhere, mirror = connect.again(run, known(run), csv, asked.settings, log)
    try:
        yield everywhere, mirror
    finally:
        connect.leave(run, everywhere.hosts)


def show(run: Run, asked: Asked) -> int:
    """Its status."""
    record = known(run)
    unseen = record.targets and all(map(run.away, record.targets))  # no frontend keeps copies
    with in_touch(run, asked) if unseen else contextlib.nullcontext():
        status.show(run, asked.launcher.json)
    return 0


def bring(run: Run, asked: Asked) -> int:
    """Logs, and what learners saved, from other hosts."""
    with in_touch(run, asked) as (everywhere, _):
        return fetch.fetch(run, everywhere.hosts, known(run), print)


def apply(run: Run, asked: Asked) -> int:
    """Actors, as the CSV has them now."""
    known(run)
    if "workers_csv_path" not in asked.given:
        raise Refused("--apply needs the changed CSV: --workers_csv_path=PATH")
    workers = read_csv(asked)
    with in_touch(run, asked) as (everywhere, _):
        change.apply(everywhere, asked.launcher, workers, asked.flags, asked.log_max_mb)
    return 0


def stop(run: Run, asked: Asked) -> int:
    """Saves and ends exactly what the run started; what it left behind is put away."""
    record, code = known(run), 0
    with in_touch(run, asked) as (everywhere, _):
        state = status.state(run)
        if state == "stale":
            everywhere.finish(print)
            print(f"{run.name} ended when this machine did: it is forgotten; its folder is whole")
        elif not run.goes_on():
            print(f"{run.name} is not running ({state}); it is forgotten, its folder is whole")
        else:
            code = _end(run, everywhere, asked.launcher.stop_secs)
        print(f"all of it in {record.logdir}")
        if code and any(run.away(where) for where in record.targets):
            return code  # the same again reaches those that were away
        with run.being_changed(patiently=True):
            if run.record == record:  # nobody else put it away, or started it again
                everywhere.forget(record, stale=state == "stale")
    return code


def _end(run: Run, everywhere: Everywhere, patience: float) -> int:
    """The exit code."""
    print(f"{run.name}: the learners save and stop, then the others", flush=True)
    began, code = time.monotonic(), 0
    everywhere.order("save")
    _wait_for_learners(run, patience)
    left = everywhere.finish(print)
    learners = run.states().get(LEARNERS, {})
    if learners.get("state") == "failed":
        code = 1
        print(follow.told(learners, 1))
    said = f" ({learners['last']})" if learners.get("last") else ""
    print(f"{run.name} has ended, after {time.monotonic() - began:.1f} s{said}")
    if left:
        code = 1
        print(follow.unanswered(left))
    return code


def _wait_for_learners(run: Run, patience: float) -> None:
    """As long as their supervisor has patience with them, it lives; their host may not."""
    away = told = 0.0
    while (state := run.states().get(LEARNERS, {"state": "lost"})["state"]) not in (*FINAL, "lost"):
        away = 0.0 if state != "away" else away or time.monotonic()
        if away and not told and time.monotonic() - away > _SILENT_SECONDS:
            told = time.monotonic()
            print(f"the learners' host does not answer; it is asked for {patience:g} s", flush=True)
        if away and time.monotonic() - away > patience:
            return
        time.sleep(0.1)


def logs(run: Run, asked: Asked) -> int:
    """Prints a process's log and what is appended to it, until the run is over or Ctrl-C."""
    name = asked.launcher.logs
    record = known(run)
    with in_touch(run, asked, log=name):
        states = run.states()
        if name not in states:
            raise Refused(f"--logs={name}: there are {', '.join(states)}")
        if "log" not in states[name]:
            raise Refused(f"--logs={name}: it has said nothing yet")
        path = Path(states[name]["log"])
        if record.place(name) and not (record.shared and name == LEARNERS):
            path = Path(record.logdir) / f"{name}.log"  # its copy
        return _print_all(run, path)


def _print_all(run: Run, path: Path) -> int:
    tail = follow.Tail(path)
    try:
        while True:
            over = not run.goes_on()
            for line in tail.lines():
                print(line, flush=True)
            if over:
                return 0
            time.sleep(0.2)
    except KeyboardInterrupt:
        return 130


def attach(run: Run, asked: Asked) -> int:
    """Follows it again, and mends what it can, as the frontend that started it did."""
    record, config = known(run), asked.launcher
    if not run.goes_on() and not record.targets:
        raise Refused(f"{run.name} is not running: --status shows it, --stop forgets it")
    csv = asked.launcher.workers_csv_path if "workers_csv_path" in asked.given else ""
    workers, _ = read(csv or record.csvs[0])
    with in_touch(run, asked) as (everywhere, mirror):
        grounds = connect.survey(workers, everywhere.hosts, config.deploy, print)
        follower = follow.Follower(everywhere, Path(record.logdir))
        follower.listen()
        print(f"{run.name}: {status.state(run)}; `d` leaves it running, Ctrl-C saves and stops it")
        recovery = Recovery(
            *(everywhere, mirror, config, workers, grounds, asked.log_max_mb), print
        )
        with mirroring.during(config.mirror_logdir, run, everywhere.hosts, record, print):
            return follower.follow(recovery, config.stop_secs)
