"""Starts processes on this machine: a task's file for each, and a window that runs it."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher import plan, windows
from launcher.config import LauncherConfig
from launcher.plan import Process
from launcher.registry import Record, Run, boot
from launcher.task import HEARTBEAT, Task, write_json
from launcher.workers import Worker

_ACTOR_SECONDS = 5.0  # that a process without anything to save has, once it is told to end


def start(
    run: Run,
    workers: Sequence[Worker],
    config: LauncherConfig,
    flags: dict[str, str],
    log_max_mb: float,
    say: Callable[[str], None],
) -> list[Process]:
    """A whole run; it is known to others before its first process is there."""
    processes = plan.make(workers, config, flags)
    record = Record(
        name=run.name,
        time=time.time(),
        boot=boot(),
        logdir=flags["logdir"],
        socket=windows.here(),
        processes=[describe(process) for process in processes],
        flags=plan.of_all(workers, flags),
        learners=processes[0].command,
        next_actor=sum(process.job == "actor" for process in processes),
    )
    if record.socket:
        windows.Session(run.name, record.socket).close()  # of a run before: its windows were kept
    else:
        say("there is no tmux here: the processes run in the background, --logs=NAME follows one")
    run.write(record)
    add(run, processes, config, record, log_max_mb)
    return processes


def add(
    run: Run,
    processes: Sequence[Process],
    config: LauncherConfig,
    record: Record,
    log_max_mb: float,
) -> None:
    """To a run that may be there already."""
    tasks = {}
    for process in processes:
        path = run.folder / process.name / "task.json"
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_json(path, _task(run, process, config, record, log_max_mb)._asdict())
        tasks[process.name] = path
    if record.socket:
        windows.Session(run.name, record.socket).open(tasks)
    else:
        windows.open_in_background(tasks)


def describe(process: Process) -> dict[str, Any]:
    """As a record has it."""
    return {
        "name": process.name,
        "job": process.job,
        "host": process.worker.ip,
        "kind": process.kind,
    }


def _task(
    run: Run, process: Process, config: LauncherConfig, record: Record, log_max_mb: float
) -> Task:
    learns = process.name == plan.LEARNERS
    logdir = Path(record.logdir)
    told = {
        "PYTHONUNBUFFERED": "1",  # what it says is read as it is said
        HEARTBEAT: str(run.folder / process.name / "beat"),
    }
    return Task(
        name=process.name,
        job=process.job,
        host=process.worker.ip,
        command=process.command,
        environment=dict(os.environ) | process.environment | told,
        workdir=process.workdir,
        folder=str(run.folder),
        log=str(logdir / f"{process.name}.log"),
        log_max_mb=log_max_mb,
        leader="" if learns else plan.LEARNERS,
        rows=str(logdir / "metrics.jsonl") if learns else "",
        restarts=config.max_restarts if config.restart_learners or not learns else 0,
        stall_secs=config.stall_secs,
        grace_secs=config.stop_secs if learns else _ACTOR_SECONDS,
    )
