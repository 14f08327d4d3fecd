"""What may be done with a run that was started, from any terminal of its user."""

import time
from pathlib import Path

from launcher import change, follow, status, touch
from launcher.asked import Asked, Refused, read_csv
from launcher.everywhere import Everywhere
from launcher.home import fetch, mirroring
from launcher.host.registry import Record, Run, names
from launcher.host.task import FINAL, LEARNERS
from launcher.hosts.mirror import Mirror
from launcher.recover import Recovery
from launcher.workers import read


def known(run: Run) -> Record:
    """What was started under this name; refused where nothing was."""
    record = run.record
    if record is None:
        there = names()
        others = f"; there are {', '.join(there)} (--tmux_sess=NAME)" if there else ""
        raise Refused(f"there is no run called {run.name}{others}")
    return record


def in_touch(run: Run, asked: Asked, log: str = "") -> tuple[Everywhere, Mirror]:
    """With the other hosts of a run, if it has any; `log`: of this process is copied, too."""
    csv = asked.launcher.workers_csv_path if "workers_csv_path" in asked.given else ""
    return touch.again(run, known(run), csv, asked.settings, log)


def show(run: Run, asked: Asked) -> int:
    """Its status."""
    record = known(run)
    if record.targets and all(map(run.away, record.targets)):  # no frontend keeps copies
        in_touch(run, asked)
    status.show(run, asked.launcher.json)
    return 0


def bring(run: Run, asked: Asked) -> int:
    """Logs, and what learners saved, from other hosts."""
    everywhere, _ = in_touch(run, asked)
    return fetch.fetch(run, everywhere.hosts, known(run), print)


def apply(run: Run, asked: Asked) -> int:
    """Actors, as the CSV has them now."""
    known(run)
    if "workers_csv_path" not in asked.given:
        raise Refused("--apply needs the changed CSV: --workers_csv_path=PATH")
    everywhere, _ = in_touch(run, asked)
    change.apply(everywhere, asked.launcher, read_csv(asked), asked.flags, asked.log_max_mb)
    return 0


def stop(run: Run, asked: Asked) -> int:
    """Saves and ends exactly what the run started; what it left behind is put away."""
    record = known(run)
    everywhere, _ = in_touch(run, asked)
    state, code = status.state(run), 0
    if state == "stale":
        print(f"{run.name} ended when this machine did: it is forgotten; its folder is whole")
    elif not run.goes_on():
        print(f"{run.name} is not running ({state}); it is forgotten, its folder is whole")
    else:
        print(f"{run.name}: the learners save and stop, then the others", flush=True)
        began = time.monotonic()
        everywhere.order("save")
        _wait_for_learners(run, asked.launcher.stop_secs)
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
    print(f"all of it in {record.logdir}")
    with run.being_changed(patiently=True):
        if run.record == record:  # nobody else put it away, or started it again
            everywhere.forget(record, stale=state == "stale")
    touch.leave(run, everywhere.hosts)
    return code


def _wait_for_learners(run: Run, patience: float) -> None:
    """As long as their supervisor has patience with them, it lives; their host may not."""
    away = 0.0
    while (state := run.states().get(LEARNERS, {"state": "lost"})["state"]) not in (*FINAL, "lost"):
        away = 0.0 if state != "away" else away or time.monotonic()
        if away and time.monotonic() - away > patience:
            return
        time.sleep(0.1)


def logs(run: Run, asked: Asked) -> int:
    """Prints a process's log and what is appended to it, until the run is over or Ctrl-C."""
    name = asked.launcher.logs
    record = known(run)
    in_touch(run, asked, log=name)
    states = run.states()
    if name not in states:
        raise Refused(f"--logs={name}: there are {', '.join(states)}")
    if "log" not in states[name]:
        raise Refused(f"--logs={name}: it has said nothing yet")
    path = Path(states[name]["log"])
    if record.place(name) and not (record.shared and name == LEARNERS):
        path = Path(record.logdir) / f"{name}.log"  # its copy
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
    everywhere, mirror = in_touch(run, asked)
    workers, _ = read(record.csv)
    grounds = touch.survey(workers, everywhere.hosts, config.deploy, print)
    follower = follow.Follower(everywhere, Path(record.logdir))
    follower.listen()
    print(f"{run.name}: {status.state(run)}; `d` leaves it running, Ctrl-C saves and stops it")
    recovery = Recovery(*(everywhere, mirror, config, workers, grounds, asked.log_max_mb), print)
    try:
        with mirroring.during(config.mirror_logdir, run, everywhere.hosts, record, print):
            return follower.follow(recovery)
    finally:
        touch.leave(run, everywhere.hosts)
