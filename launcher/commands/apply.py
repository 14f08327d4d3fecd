"""`--apply`: adds and removes actors of a running run, so that they match the changed CSV.

Learners and evaluators do not change.
"""

import collections
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from impala_mm.config import user_sources
from launcher.follow import connect, start
from launcher.follow.connected_run import add_pending_stop
from launcher.follow.console import say
from launcher.follow.followed_run import FollowedRun
from launcher.hosts import deploy
from launcher.hosts.hosts import find_targets, host_id_of
from launcher.plan import process_plan
from launcher.plan.host_environment import InstallationOf
from launcher.plan.process_plan import Process
from launcher.plan.request import Request, UserError
from launcher.supervise.run_registry import Record, Run
from launcher.supervise.task import FINAL_STATES, LEARNERS


class NotRunning(Exception):
    """The run that should be changed is not running."""


def update_actors(followed: FollowedRun, request: Request) -> None:
    """Start and stop actors as the CSV's rows say; print what changed and what cannot change.

    Raises NotRunning, or UserError if a new actor's host lacks the project.
    """
    run, hosts, config, workers = followed.run, followed.hosts, followed.config, followed.workers
    _running_record(run)  # refused before hosts are connected
    hosts.targets |= find_targets(workers)
    pythons = connect.candidate_pythons(workers, config.deploy)
    unreached = hosts.connect(say, pythons)
    for sentence in unreached.values():
        say(f"note: {sentence}")
    followed.end_pending(say)
    installation_of = _find_installations(followed, request, _running_record(run))
    with run.locked():  # to deploy may have taken long
        record = start.with_reported_addresses(run, _running_record(run))
        if process_plan.chooses_port(record.flags["learner_hosts"]):
            raise NotRunning(
                f"the learners of {run.name} have not reported their ports yet, which new actors "
                f"need: repeat --apply in a moment"
            )
        wanted = process_plan.make_processes(workers, config, record.flags, installation_of)
        _note_what_remains(record, wanted, request.flags)
        added, removed = _find_differences(run, record, wanted)
        _refuse_without_project(added)
        new = [
            process_plan.make_actor(
                process.worker, record.next_actor + i, config, record.flags, installation_of
            )
            for i, process in enumerate(added)
        ]
        for name in removed:
            followed.request_stop("save", name)
            if (host_id := record.host_id_of(name)) and (why := run.why_away(host_id)):
                say(f"note: {name} keeps running until {host_id} can be reached ({why})")
        # Those that were removed stay in the record: they may take a moment to end.
        learners = record.host_id_of(LEARNERS)
        new_entries = [start.record_entry(process, learners, record) for process in new]
        processes = [*record.processes, *new_entries]
        given_up = _give_up_hosts(run, record, processes, removed)
        targets = connect.describe_targets(hosts)
        csvs = [str(Path(config.workers_csv_path).absolute()), *record.csvs]
        new_hosts = hosts.remote_nodes.keys() - record.targets.keys() - unreached.keys()
        record = dataclasses.replace(
            record,
            processes=[p for p in processes if p.get("place") not in given_up],
            next_actor=record.next_actor + len(new),
            targets={host_id: how for host_id, how in targets.items() if host_id not in given_up},
            pythons=record.pythons | pythons,
            csvs=list(dict.fromkeys(csvs)),
        )
        run.write_record(record)
        start.begin_on_hosts(followed, record, list(new_hosts))
        if new:
            start.start_processes(followed, record, new)
    actors = f"{len(new)} actor{'s' * (len(new) != 1)}"
    say(f"{run.name}: {actors} added, {len(removed)} removed")


def _running_record(run: Run) -> Record:
    record = run.record
    if record is None or not run.is_running():
        raise NotRunning(
            f"{run.name} is not running: start it with the same command without --apply"
        )
    return record


def _find_installations(followed: FollowedRun, request: Request, record: Record) -> InstallationOf:
    """Find where the project is; with --deploy, copy it to the hosts that lack it.

    Hosts that have it keep it as it is: the run may be using it, also where hosts share a folder.
    """
    hosts, workers, config = followed.hosts, followed.workers, followed.config
    found = connect.find_installations(workers, hosts, config.deploy, say)
    if not config.deploy:
        return found
    # Hosts of the run may have been set up without --deploy, in another folder.
    lacking = [row for row in workers if found(row).missing]
    known = [row for row in lacking if host_id_of(row) in record.targets]
    before = connect.find_installations(known, hosts, False, say)
    elsewhere = [row for row in known if not before(row).missing]
    new = [row for row in lacking if row not in elsewhere]
    if deploy.deploy_project(hosts, new, config, say, user_sources.of_run(request.experiment)):
        raise UserError("nothing was changed: --deploy did not succeed on all hosts that lack it")
    after = connect.find_installations(new, hosts, True, say)
    return lambda row: (before if row in elsewhere else after if row in new else found)(row)


def _refuse_without_project(added: Sequence[Process]) -> None:
    for process in added:
        if missing := process.installation.missing:
            raise UserError(
                f"nothing was changed: row {process.worker.line}: {missing} on "
                f"{process.worker.ip}: --deploy copies the project there; or set workdir "
                f"or python in the CSV"
            )


def _note_what_remains(record: Record, wanted: Sequence[Process], flags: dict[str, str]) -> None:
    """Print what the CSV and the flags ask for and --apply does not do."""
    for name, value in flags.items():
        if record.flags.get(name) != value:
            was = record.flags.get(name, "its default")
            say(f"note: --{name} remains {was}: --apply does not change flags")
    if sum(p.job == "evaluator" for p in wanted) != sum(
        p["job"] == "evaluator" for p in record.processes
    ):
        say("note: --apply does not add or remove evaluators; --stop the run and restart it")
    if wanted[0].command != record.learners:
        say("note: --apply does not change learners; --stop the run and restart it")


def _give_up_hosts(
    run: Run, record: Record, processes: Sequence[dict[str, Any]], removed: Sequence[str]
) -> set[str]:
    """Return unreachable hosts that have no process of the run any more.

    Their removed actors are recorded as pending stops: they end once the host can be reached.
    """
    wanted = {p.get("place", "") for p in processes if p["name"] not in removed}
    left = {record.host_id_of(name) for name in removed} - wanted - {"", *record.learner_places}
    given_up = {host_id for host_id in left if run.why_away(host_id)}
    for host_id in given_up:
        add_pending_stop(host_id, record.id)
    return given_up


def _find_differences(
    run: Run, record: Record, wanted: Sequence[Process]
) -> tuple[list[Process], list[str]]:
    """Return the actors to start, and the names of the actors to stop."""
    states = run.states()
    present: dict[str, list[str]] = collections.defaultdict(list)
    for old in record.processes:
        is_stopping = (run.folder / old["name"] / "stop").exists()
        has_ended = states[old["name"]]["state"] in (*FINAL_STATES, "lost")
        if old["job"] == "actor" and not is_stopping and not has_ended:
            present[_signature_text(old["kind"])].append(old["name"])
    added = []
    for process in wanted:
        if process.job == "actor":
            alike = present[_signature_text(process_plan.row_signature(process.worker))]
            if alike:
                alike.pop(0)  # the oldest keeps running
            else:
                added.append(process)
    return added, [name for names in present.values() for name in names]


def _signature_text(signature: dict[str, Any]) -> str:
    return json.dumps(signature, sort_keys=True)
