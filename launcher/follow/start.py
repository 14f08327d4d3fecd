"""Starts the processes of a run: on its machine each gets a supervisor and a tmux window."""

import dataclasses
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from impala_mm.runtime import certificates
from launcher.follow import connect, remembered
from launcher.follow.connected_run import ConnectedRun, pending_stops_on
from launcher.hosts.hosts import run_libtmux
from launcher.hosts.remote_node import HostUnavailable
from launcher.plan import process_plan
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.supervise import tmux
from launcher.supervise.run_registry import ProcessEntry, Record, Run, boot_id
from launcher.supervise.task import (
    HEARTBEAT,
    LEARNERS,
    START_VARIABLE,
    Task,
    with_learner_hosts,
)

_WINDOWS_SECONDS = 60.0  # timeout for a host to open its tmux windows


def start_run(
    connected: ConnectedRun, flags: dict[str, str], logdir: Path, shared: bool
) -> tuple[Record, list[Process]]:
    """Start the processes of a run; return its record, and the actors that are not started yet.

    The actors wait for `start_actors` if a learner chooses its port itself. The record is written
    before the processes start. `logdir` is the run's folder on this machine. `flags` names the
    folder on the learners' machine, which is the same one if it is `shared`.
    """
    run, hosts, config = connected.run, connected.hosts, connected.config
    workers, installation_of = connected.workers, connected.installation_of
    ports = find_ports(connected, [worker for worker in workers if worker.job == "learner"])
    processes = process_plan.make_processes(workers, config, flags, installation_of, ports)
    record = Record(
        name=run.name,
        id=secrets.token_hex(8),
        time=time.time(),
        boot=boot_id(),
        logdir=str(logdir),
        socket=tmux.default_socket(),
        processes=[],
        flags=process_plan.join_common_flags(workers, flags, installation_of),
        learners=processes[0].command,
        next_actor=0,
        start_flags=remembered.describe(config),
        shared=shared,
        first_learner_places=[p.installation.host_id for p in processes if p.job == "learner"],
        targets=connect.describe_targets(hosts),
        pythons=connect.candidate_pythons(workers, config.deploy),
        csvs=[str(Path(config.workers_csv_path).absolute())],
        started_from=socket.gethostname(),
    )
    waits = process_plan.chooses_port(record.flags["learner_hosts"])
    actors = [process for process in processes if process.job == "actor" and waits]
    first = [process for process in processes if process not in actors]
    record = dataclasses.replace(
        record,
        processes=[record_entry(p, processes[0].installation.host_id, record) for p in first],
        next_actor=sum(process.job == "actor" for process in first),
    )
    is_local = any(not process.installation.host_id for process in processes)
    if is_local and record.socket:  # windows of an earlier run of this name were kept
        tmux.Session(run.name, record.socket, run_libtmux).close_ended()
    elif is_local:
        connected.say(
            "tmux is not installed on this machine, or its folder belongs to others: processes run "
            "in the background; --logs=NAME shows the log of one"
        )
    run.write_record(record)
    begin_on_hosts(
        connected,
        record,
        [host_id for host_id, node in hosts.remote_nodes.items() if not node.error],
    )
    start_processes(connected, record, first)
    return record, actors


def start_actors(
    connected: ConnectedRun, record: Record, actors: Sequence[Process], addresses: Sequence[str]
) -> Record:
    """Start the actors once the learners' addresses are known; return the new record."""
    known = [
        dataclasses.replace(each, command=with_learner_hosts(each.command, addresses))
        for each in actors
    ]
    entries = [record_entry(process, record.learner_places[0], record) for process in known]
    record = dataclasses.replace(
        record,
        processes=[*record.learner_processes, *entries, *record.other_processes],
        flags=record.flags | {"learner_hosts": ",".join(addresses)},
        next_actor=len(known),
    )
    connected.run.write_record(record)
    start_processes(connected, record, known)
    return record


def with_reported_addresses(run: Run, record: Record) -> Record:
    """Return a record with the learners' addresses, if a frontend ended before it wrote them."""
    reported = run.state_of(LEARNERS).learner_hosts
    if not reported or not process_plan.chooses_port(record.flags["learner_hosts"]):
        return record
    return dataclasses.replace(record, flags=record.flags | {"learner_hosts": ",".join(reported)})


def find_ports(connected: ConnectedRun, learners: Sequence[Worker]) -> list[int]:
    """Return free ports of the first learner's host, one for each other host with learners."""
    count = process_plan.count_other_hosts(learners, connected.installation_of)
    first = connected.installation_of(learners[0])
    if not count:
        return []
    ports = connected.hosts.call(first.host_id, "free_ports", address=first.address, count=count)
    return list(ports)


def begin_on_hosts(connected: ConnectedRun, record: Record, host_ids: Sequence[str]) -> None:
    """Create the run's state on other hosts. Raises OperationFailed."""
    token = (connected.run.folder / "token").read_text()
    actors_token = certificates.without_learner(token)
    learners = record.first_learner_places or host_ids  # a record of an earlier version has none

    def begin_on(host_id: str) -> None:
        connected.hosts.call(
            host_id,
            "begin_run",
            record=record.for_hosts(),
            token=token if host_id in learners else actors_token,
            starts_to_end=pending_stops_on(host_id),
        )

    for error in connected.hosts.for_each(begin_on, host_ids, connected.say).values():
        if error:
            raise error


def start_processes(connected: ConnectedRun, record: Record, processes: Sequence[Process]) -> None:
    """Start processes on their hosts, for a new run or one that is running.

    `recovery` starts those on an unreachable host once it is connected.
    """
    run, hosts, config = connected.run, connected.hosts, connected.config
    entries = {entry.name: entry for entry in record.processes}
    tasks: dict[str, list[Process]] = {}
    for process in processes:
        tasks.setdefault(process.installation.host_id, []).append(process)

    def start_on(host_id: str) -> Any:
        some = [
            _make_task(process, config, record, connected.log_max_mb)._asdict()
            for process in tasks[host_id]
        ]
        host_entries = []  # this machine has all of them in the run's own record
        for process in tasks[host_id] if host_id else []:
            for file in ("state.json", "stop"):  # copies of an earlier process of this name
                (run.folder / process.name / file).unlink(missing_ok=True)
            entry = dataclasses.replace(entries[process.name], place="")
            host_entries.append(dataclasses.asdict(entry))
        return hosts.call(
            host_id,
            "start_processes",
            tasks=some,
            entries=host_entries,
            timeout=_WINDOWS_SECONDS,
        )

    for host_id, result in hosts.for_each(start_on, list(tasks), connected.say).items():
        if isinstance(result, HostUnavailable):
            run.record_contact(host_id, str(result))
        elif isinstance(result, Exception):
            raise result
        elif result:
            connected.say(f"note: {host_id or 'this machine'}: {result}")


def record_entry(process: Process, learners_host_id: str, record: Record) -> ProcessEntry:
    """Return the entry of a process in the record."""
    log = Path(process.logdir)
    # On other hosts the learners' folder may not exist or not be writable.
    if process.installation.host_id != learners_host_id:
        log = Path(process.installation.folder).parents[1] / "logs" / f"{record.name}-{record.id}"
    return ProcessEntry(
        name=process.name,
        job=process.job,
        host=process.worker.ip,
        place=process.installation.host_id,
        kind=process_plan.row_signature(process.worker),
        log=str(log / f"{process.name}.log"),
        port=process.port,
    )


def _make_task(process: Process, config: LauncherConfig, record: Record, log_max_mb: float) -> Task:
    log = next(entry.log for entry in record.processes if entry.name == process.name)
    is_learners = process.name == LEARNERS
    folder = Path(process.installation.folder)
    variables = {
        "PYTHONUNBUFFERED": "1",  # its log must be complete at all times
        HEARTBEAT: str(folder / process.name / "beat"),
        START_VARIABLE: record.id,
    }
    return Task(
        name=process.name,
        job=process.job,
        host=process.worker.ip,
        command=process.command,
        environment=process.environment | variables,
        workdir=process.workdir,
        folder=str(folder),
        log=log,
        log_max_mb=log_max_mb,
        lease_secs=None
        if process.installation.host_id == record.host_id_of(LEARNERS)
        else config.orphan_secs,
        rows=str(Path(process.logdir) / "metrics.jsonl") if is_learners else "",
        restarts=config.max_restarts if config.restart_learners or not is_learners else 0,
        stall_secs=config.stall_secs,
        grace_secs=config.stop_secs,
    )
