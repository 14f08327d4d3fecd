"""What the frontend does, by its flags: starts a run and watches it, or asks after one.

`run_experiment_mm_raw.py` calls it with what it has read. What goes wrong by the user's doing is a
`Refused`; the sentence is all that is printed of it.
"""

import contextlib
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from launcher import (
    change,
    check,
    deploy,
    fetch,
    follow,
    ground,
    mirroring,
    plan,
    slurm,
    start,
    status,
    touch,
)
from launcher.config import LauncherConfig
from launcher.everywhere import Everywhere
from launcher.ground import Ground, Grounds
from launcher.host import windows
from launcher.host.registry import BadName, Foreign, Record, Run, Taken, names
from launcher.host.task import FINAL, LEARNERS
from launcher.hosts import Hosts, place, targets, tmux
from launcher.plan import Process
from launcher.recover import Recovery
from launcher.ssh.config import Settings
from launcher.there import Failed, Lost
from launcher.workers import BadCsv, Worker, read

_EXAMPLE = Path(__file__).resolve().parent.parent / "workers.csv.example"
# What the CSV and the frontend itself say to each process.
_OURS = {
    "job_name": "the column job of the CSV says it",
    "task": "actors are numbered in the order of their rows",
    "learner": "the column learner of the CSV says it",
    "learner_hosts": "the learners' rows of the CSV say it",
    "num_learners": "the CSV has a row for each learner",
    "num_actors": "the CSV has a row for each actor, or its column count",
    "token_file": "each run has a secret of its own",
    "validate": "--check does that",
}


class Refused(Exception):
    """Says what the user is to mend."""


class Asked(NamedTuple):
    """What the user wrote, and what of this project's other half is needed."""

    launcher: LauncherConfig
    given: list[str]  # names of the flags that were written
    flags: dict[str, str]  # those of experiment.py among them, with their values
    logdir: str  # that was given
    log_max_mb: float
    make_logdir: Callable[[], Path]
    check_free: Callable[[str], None]  # raises OSError where an address is taken


def main(asked: Asked) -> int:
    """The exit code."""
    config = asked.launcher
    try:
        run = Run(config.tmux_sess)
        if config.stop:
            return stop(run, asked)
        if config.status or config.json:
            record = known(run)
            if record.targets and all(map(run.away, record.targets)):  # no frontend keeps copies
                in_touch(run, asked)
            status.show(run, config.json)
            return 0
        if config.logs:
            return logs(run, asked)
        if config.fetch:
            return fetch.fetch(run, in_touch(run, asked).hosts, known(run), print)
        if config.apply:
            known(run)
            if "workers_csv_path" not in asked.given:
                raise Refused("--apply needs the changed CSV: --workers_csv_path=PATH")
            change.apply(
                in_touch(run, asked), config, read_csv(asked), asked.flags, asked.log_max_mb
            )
            return 0
        return emit(run, asked) if config.emit else launch(run, asked)
    except BadName as error:
        raise Refused(f"--tmux_sess: {error}") from None
    except BrokenPipeError:
        raise
    except OSError as error:  # a disk that is full, a folder that is not ours
        raise Refused(f"{error.filename or run.folder}: {error.strerror}") from None
    except (
        BadCsv,
        Foreign,
        Taken,
        change.Over,
        Failed,
        Lost,
        plan.Unfit,
        windows.Broken,
    ) as error:
        raise Refused(str(error)) from None


# -- starting


def launch(run: Run, asked: Asked) -> int:
    """Starts everything and stays to watch; or says what would be."""
    config = asked.launcher
    _refuse_what_is_ours(asked)
    workers = read_csv(asked)
    supposed = Path(asked.logdir or "runs/NEW").absolute()
    if config.dry_run:
        _print(plan.make(workers, config, asked.flags | {"logdir": str(supposed)}, _supposed(run)))
        return 0
    if config.wheelhouse and not config.deploy:
        raise Refused("--wheelhouse is for --deploy, which brings its packages to the hosts")
    run.refuse_taken()
    hosts = Hosts(run.name, targets(workers), _settings(config))
    try:
        return _launch(run, asked, workers, hosts, supposed)
    finally:
        touch.leave(run, hosts)


def _launch(run: Run, asked: Asked, workers: list[Worker], hosts: Hosts, supposed: Path) -> int:
    config = asked.launcher
    socket = windows.here()
    if socket:
        windows.Session(run.name, tmux(socket)).refuse_foreign()
    unreached = hosts.reach(print, touch.pythons(workers, config.deploy))
    everywhere = Everywhere(run, hosts)
    everywhere.end_leftovers(print)
    if config.deploy and deploy.deploy(hosts, workers, config, print):
        raise Refused("nothing was started: not all hosts are ready for it")
    grounds = touch.survey(workers, hosts, config.deploy, print)
    learners = grounds(next(worker for worker in workers if worker.job == "learner"))
    told = learners.path(asked.logdir or "runs/NEW") if learners.place else str(supposed)
    processes = plan.make(workers, config, asked.flags | {"logdir": told}, grounds)
    if config.check or not config.skip_check:
        to_check = check.Asked(
            *(workers, processes, grounds, hosts, unreached, config, asked.flags),
            logdir=supposed,
            check_free=asked.check_free,
        )
        found = _checked(to_check, only=config.check)
        if config.check or check.failed(found):
            return int(check.failed(found))
    elif learners.place in unreached:
        raise Refused(f"the learners' host does not answer: {unreached[learners.place]}")
    with run.being_changed():
        run.refuse_taken()
        try:
            logdir = asked.make_logdir().absolute()
        except OSError as error:
            raise Refused(f"--logdir={supposed}: {error.strerror}") from None
        run.renew()
        told = str(logdir)
        if learners.place:
            told = learners.path(asked.logdir or f"runs/{logdir.name}")
        shared = touch.is_shared(hosts, learners.place, told, logdir, "is-shared")
        follower = follow.Follower(everywhere, logdir)
        follower.listen()
        begin = time.monotonic()
        flags = asked.flags | {"logdir": told}
        record = start.start(
            run, hosts, workers, config, flags, logdir, shared, grounds, asked.log_max_mb, print
        )
        mirror = touch.keep(run, record, hosts)
    there = f" on {len(hosts.there) - len(unreached)} hosts" if hosts.there else ""
    print(
        f"{run.name}: {len(processes)} processes started{there} in "
        f"{time.monotonic() - begin:.1f} s; all of it in {logdir}"
    )
    if processes[0].others:
        print(
            f"the learners' supervisor on {learners.place or 'this machine'} keeps what it needs "
            f"to reach the other learners in its memory: if it dies, start the run again"
        )
    if config.detach and not follower.interrupted:
        print(follow.how_to_come_back(run))
        return 0
    on_each = " on each host" if hosts.there else ""
    inside = f"`tmux attach -t {run.name}`{on_each} looks inside, " if socket else ""
    print(f"{inside}`d` leaves it running, Ctrl-C saves and stops it", flush=True)
    recovery = Recovery(everywhere, mirror, config, workers, grounds, asked.log_max_mb, print)
    with mirroring.during(config.mirror_logdir, run, hosts, record, print):
        return follower.follow(recovery)


def _settings(config: LauncherConfig) -> Settings:
    return Settings(config.ssh_config, config.ssh_accept_new_hosts)


def _supposed(run: Run) -> Grounds:
    """Without asking any host."""

    def of(worker: Worker) -> Ground:
        where = place(worker)
        if not where:
            return ground.here(worker, str(run.folder))
        return ground.elsewhere(worker, where, worker.ip, {})

    return of


def _refuse_what_is_ours(asked: Asked) -> None:
    for name, why in _OURS.items():
        if name in asked.flags:
            raise Refused(f"--{name} is not for the frontend: {why}")
    if asked.flags.get("mode", "train") not in ("train", "train_from"):
        raise Refused(
            f"--mode={asked.flags['mode']} is one process: give it to experiment.py itself"
        )
    for name, value in asked.flags.items():
        if "\n" in value or "\0" in value:
            raise Refused(f"--{name} holds a line's end; no process can be told that")


def read_csv(asked: Asked) -> list[Worker]:
    """Of the CSV; of the example where none is named, as far as this machine can be it."""
    path = asked.launcher.workers_csv_path
    named = "workers_csv_path" in asked.given
    if not named and not Path(path).exists():
        path = str(_EXAMPLE)
    workers, notes = read(path)
    for note in notes:
        print(f"note: {path}: {note}")
    learners = [worker for worker in workers if worker.job == "learner"]
    multi = importlib.util.find_spec("horovod") is not None
    if not named and len(learners) > 1 and not multi:
        why = "there is no Horovod here (`make horovod` builds it)"
        print(f"{why}: one learner trains, with all actors")
        workers = [
            dataclasses.replace(worker, learner=-1)
            for worker in workers
            if worker.job != "learner" or worker is learners[0]
        ]
    return workers


def _checked(asked: check.Asked, only: bool) -> list[check.Finding]:
    """Shown whole where it is `only` checked, else what is not good."""
    begin = time.monotonic()
    found = check.check(asked)
    good = sum(finding.good is True for finding in found)
    shown = found if only else [each for each in found if not each.good]
    if shown:
        check.show(shown)
    seconds = time.monotonic() - begin
    print(f"checked: {good} of {len(found)} good ({seconds:.1f} s)", flush=True)
    if check.failed(found) and not only:
        print("nothing was started; --check shows all of it, --skip_check starts all the same")
    return found


def _print(processes: list[Process]) -> None:
    for process in processes:
        print(f"# {process.name} on {process.worker.ip}, in {process.workdir}")
        print(process.line())


def emit(run: Run, asked: Asked) -> int:
    """Prints the run as a job of another launcher; all else goes to stderr."""
    config = asked.launcher
    if config.emit != "slurm":
        raise Refused(f"--emit={config.emit}: it must be slurm")
    _refuse_what_is_ours(asked)
    with contextlib.redirect_stdout(sys.stderr):
        workers = read_csv(asked)
        for note in slurm.notes(workers, config, asked.given):
            print(f"note: {note}")
    print(slurm.script(run.name, workers, config, asked.flags), end="")
    return 0


# -- asking after a run


def known(run: Run) -> Record:
    """What was started under this name; refused where nothing was."""
    record = run.record
    if record is None:
        there = names()
        others = f"; there are {', '.join(there)} (--tmux_sess=NAME)" if there else ""
        raise Refused(f"there is no run called {run.name}{others}")
    return record


def in_touch(run: Run, asked: Asked, log: str = "") -> Everywhere:
    """With the other hosts of a run, if it has any; `log`: of this process is copied, too."""
    csv = asked.launcher.workers_csv_path if "workers_csv_path" in asked.given else ""
    return touch.again(run, known(run), csv, _settings(asked.launcher), log)


def stop(run: Run, asked: Asked) -> int:
    """Saves and ends exactly what the run started; what it left behind is put away."""
    record = known(run)
    everywhere = in_touch(run, asked)
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
