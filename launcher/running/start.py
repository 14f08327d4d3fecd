"""Starts processes: a task's file for each on its machine, and a window there that runs it."""

import dataclasses
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.node import tmux as windows
from launcher.node.run_registry import Record, Run, boot
from launcher.node.task import HEARTBEAT, LEARNERS, OF_LEARNERS, Task
from launcher.plan import process_plan
from launcher.plan.host_environment import Ground, Grounds
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts, tmux
from launcher.remote.remote_node import Lost
from launcher.running import connect
from launcher.running.pending_stops import Unfinished

_ACTOR_SECONDS = 5.0  # that a process without anything to save has, once it is told to end
_START_SECONDS = 60.0  # for a host to open its windows
Say = Callable[[str], None]


def start(
    run: Run,
    hosts: Hosts,
    workers: Sequence[Worker],
    config: LauncherConfig,
    flags: dict[str, str],
    logdir: Path,
    shared: bool,
    grounds: Grounds,
    log_max_mb: float,
    say: Say,
) -> Record:
    """A whole run; it is known to others before its first process is there.

    `logdir` is on this machine; `flags` name the one that its processes write to, which is the
    same where that is `shared`.
    """
    processes = process_plan.make(workers, config, flags, grounds)
    record = Record(
        name=run.name,
        id=secrets.token_hex(8),
        time=time.time(),
        boot=boot(),
        logdir=str(logdir),
        socket=windows.here(),
        processes=[],
        flags=process_plan.of_all(workers, flags, grounds),
        learners=processes[0].command,
        next_actor=sum(process.job == "actor" for process in processes),
        shared=shared,
        learner_places=learner_places(processes[0]),
        targets=connect.described(hosts),
        pythons={where: connect.pythons(workers, config.deploy)(where) for where in hosts.targets},
        csvs=[str(Path(config.workers_csv_path).absolute())],
        started_from=socket.gethostname(),
    )
    record.processes[:] = [
        describe(process, processes[0].ground.place, record) for process in processes
    ]
    here = any(not process.ground.place for process in processes)
    if here and record.socket:  # of a run before: its windows were kept
        windows.Session(run.name, tmux(record.socket)).clear()
    elif here:
        say("there is no tmux here: the processes run in the background, --logs=NAME follows one")
    run.write(record)
    begin(run, hosts, record, [place for place in hosts.there if not hosts.there[place].why], say)
    add(run, hosts, processes, config, record, log_max_mb, say)
    return record


def learner_places(learners: Process) -> list[str]:
    """The first learner's first."""
    return list(dict.fromkeys([learners.ground.place, *[g.place for g in learners.others]]))


def begin(run: Run, hosts: Hosts, record: Record, places: Sequence[str], say: Say) -> None:
    """Tells other hosts of the run. Raises Failed where one cannot take part."""
    token = (run.folder / "token").read_text()
    unfinished = Unfinished()
    # Of actors and learners elsewhere they need to know nothing.
    told = dataclasses.asdict(record) | {"processes": [], "learners": [], "flags": {}, "csvs": []}

    def one(place: str) -> None:
        hosts.call(place, "begin", record=told, token=token, over=unfinished.of(place))

    for error in hosts.each(one, places, say).values():
        if error:
            raise error


def add(
    run: Run,
    hosts: Hosts,
    processes: Sequence[Process],
    config: LauncherConfig,
    record: Record,
    log_max_mb: float,
    say: Say | None = None,
) -> None:
    """To a run that may be there already; hosts that are not in touch get theirs when they are."""
    known = {each["name"]: each for each in record.processes}
    tasks: dict[str, list[Process]] = {}
    for process in processes:
        tasks.setdefault(process.ground.place, []).append(process)

    def one(place: str) -> None:
        some = [
            _task(process, known[process.name]["log"], config, record, log_max_mb)._asdict()
            for process in tasks[place]
        ]
        if not place:
            hosts.here.add(some, [])
            return
        for process in tasks[place]:  # what is known of one that was there before is old
            for file in ("state.json", "stop"):
                (run.folder / process.name / file).unlink(missing_ok=True)
        told = [known[process.name] | {"place": ""} for process in tasks[place]]
        hosts.there[place].call("add", tasks=some, told=told, within=_START_SECONDS)

    for place, error in hosts.each(one, list(tasks), say).items():
        if isinstance(error, Lost):
            run.see(place, str(error))
        elif error:
            raise error
    for process in processes:
        if process.others:
            known = keys(hosts, process.ground, process.others, record.id)
            hosts.call(process.ground.place, "give_keys", credentials=known)


def keys(
    hosts: Hosts, first: Ground, others: Sequence[Ground], start: str
) -> dict[str, dict[str, Any]]:
    """What mpirun on one machine needs to reach others, by their addresses."""
    known = {}
    for ground in others:
        credential = hosts.there[ground.place].credential if ground.place else None
        if credential:
            known[ground.address] = credential._asdict() | {
                "prefixes": [process_plan.prefix(first), process_plan.prefix(ground)],
                "mark": f"{OF_LEARNERS}={start}",
            }
    return known


def describe(process: Process, where_learners_are: str, record: Record) -> dict[str, Any]:
    """As a record has it."""
    log = Path(process.logdir)
    if process.ground.place != where_learners_are:  # that folder may not be there, or not ours
        log = Path(process.ground.folder).parents[1] / "logs" / f"{record.name}-{record.id}"
    return {
        "name": process.name,
        "job": process.job,
        "host": process.worker.ip,
        "place": process.ground.place,
        "kind": process_plan.kind(process.worker),
        "log": str(log / f"{process.name}.log"),
    }


def _task(
    process: Process, log: str, config: LauncherConfig, record: Record, log_max_mb: float
) -> Task:
    learns = process.name == LEARNERS
    folder = Path(process.ground.folder)
    told = {
        "PYTHONUNBUFFERED": "1",  # what it says is read as it is said
        HEARTBEAT: str(folder / process.name / "beat"),
    }
    if process.others:
        told[OF_LEARNERS] = record.id
    return Task(
        name=process.name,
        job=process.job,
        host=process.worker.ip,
        command=process.command,
        environment=process.environment | told,
        workdir=process.workdir,
        folder=str(folder),
        log=log,
        log_max_mb=log_max_mb,
        leader="" if learns else LEARNERS,
        lease_secs=0.0 if process.ground.place == record.place(LEARNERS) else config.orphan_secs,
        rows=str(Path(process.logdir) / "metrics.jsonl") if learns else "",
        agent=agent(process.ground) if process.others else [],
        restarts=config.max_restarts if config.restart_learners or not learns else 0,
        stall_secs=config.stall_secs,
        grace_secs=config.stop_secs if learns else _ACTOR_SECONDS,
    )


def agent(ground: Ground) -> list[str]:
    """By which mpirun on that machine reaches others; their supervisor says more to it."""
    return ["env", "-C", ground.root, ground.python, "-m", "launcher.remote.mpirun_ssh"]
