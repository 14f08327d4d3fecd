"""`--apply`: adds and removes actors of a running run, so that they match the changed CSV.

Learners and evaluators do not change.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from impala_mm.config import command_line, user_sources
from impala_mm.config.errors import BadSettings
from impala_mm.config.settings import Config
from launcher.commands.manage import connected, require_record
from launcher.follow import connect, start
from launcher.follow.connect import Installations
from launcher.follow.connected_run import add_pending_stop
from launcher.follow.console import say
from launcher.follow.followed_run import FollowedRun
from launcher.hosts import deploy
from launcher.hosts.hosts import find_targets, host_id_of
from launcher.plan import process_plan
from launcher.plan.process_plan import Process
from launcher.plan.request import Request, UserError, read_workers
from launcher.supervise.run_registry import ProcessEntry, Record, Run
from launcher.supervise.task import LEARNERS


def apply_csv(run: Run, request: Request) -> int:
    """Start and stop actors as the CSV's rows say; print what changed and what cannot change."""
    require_record(run)
    if "workers_csv_path" not in request.given:
        raise UserError("--apply needs the changed CSV: add --workers_csv_path=PATH")
    workers, config = read_workers(request), request.launcher
    with connected(run, request, workers=workers) as followed:
        record = _running_record(run)  # refused before new hosts are connected
        hosts = followed.hosts
        hosts.targets |= find_targets(workers)
        pythons = connect.candidate_pythons(workers, config.deploy)
        unreached = hosts.connect(say, pythons)
        for sentence in unreached.values():
            say(f"note: {sentence}")
        followed.end_pending(say)
        installation_of = _find_installations(followed, request, record)
        with run.locked():  # to deploy may have taken long
            before = start.with_reported_addresses(run, _running_record(run))
            if process_plan.chooses_port(before.flags["learner_hosts"]):
                raise UserError(
                    f"the learners of {run.name} have not reported their ports yet, which new "
                    f"actors need: repeat --apply in a moment"
                )
            wanted = process_plan.make_processes(workers, config, before.flags, installation_of)
            _note_what_remains(before, wanted, request.flags)
            added, removed = _find_differences(run, before, wanted)
            new = [
                process_plan.make_process(
                    f"actor-{task}", process.worker, config, before.flags, installation_of
                )
                for task, process in enumerate(added, before.next_actor)
            ]
            for name in removed:
                followed.request_stop("save", name)
                if (host_id := before.host_id_of(name)) and (why := run.why_away(host_id)):
                    say(f"note: {name} keeps running until {host_id} can be reached ({why})")
            # Those that were removed stay in the record: they may take a moment to end.
            learners = before.host_id_of(LEARNERS)
            entries = [start.record_entry(process, learners, before) for process in new]
            processes = [*before.processes, *entries]
            given_up = _give_up_hosts(run, before, processes, removed)
            targets = connect.describe_targets(hosts)
            csvs = [str(Path(config.workers_csv_path).absolute()), *before.csvs]
            record = dataclasses.replace(
                before,
                processes=[p for p in processes if p.place not in given_up],
                next_actor=before.next_actor + len(new),
                targets={h: how for h, how in targets.items() if h not in given_up},
                pythons=before.pythons | pythons,
                csvs=list(dict.fromkeys(csvs)),
            )
            run.write_record(record)
            known = before.targets | unreached
            start.begin_on_hosts(followed, record, [h for h in record.targets if h not in known])
            if new:
                start.start_processes(followed, record, new)
    actors = f"{len(new)} actor{'s' * (len(new) != 1)}"
    say(f"{run.name}: {actors} added, {len(removed)} removed")
    return 0


def _running_record(run: Run) -> Record:
    record = run.record
    if record is None or not run.is_running():
        raise UserError(
            f"{run.name} is not running: start it with the same command without --apply"
        )
    return record


def _find_installations(followed: FollowedRun, request: Request, record: Record) -> Installations:
    """Find where the project is; with --deploy, copy it to the hosts that lack it.

    Hosts that have it keep it as it is: the run may be using it, also where hosts share a folder.
    """
    hosts, workers, config = followed.hosts, followed.workers, followed.config
    found = connect.find_installations(workers, hosts, config.deploy, say)
    lacking = [row for row in workers if found(row).missing]
    if not config.deploy or not lacking:
        return found
    # Hosts of the run may have been set up without --deploy, in another folder.
    known = [row for row in lacking if host_id_of(row) in record.targets]
    before = connect.find_installations(known, hosts, False, say)
    elsewhere = [row for row in known if not before(row).missing]
    new = [row for row in lacking if row not in elsewhere]
    sources = user_sources.of_run(_settings_of(record))
    if deploy.deploy_project(hosts, new, config, say, sources):
        raise UserError("nothing was changed: --deploy did not succeed on all hosts that lack it")
    after = connect.find_installations(new, hosts, True, say)
    return Installations(found | before | after)


def _settings_of(record: Record) -> Config:
    """Return the settings with which the run was started, which the processes of new hosts get."""
    try:
        return command_line.parse_settings(record.flags, Config)[0]
    except BadSettings as error:
        raise UserError(f"the flags of {record.name} cannot be read here: {error}") from None


def _note_what_remains(record: Record, wanted: Sequence[Process], flags: Mapping[str, str]) -> None:
    """Print what the CSV and the flags ask for and --apply does not do."""
    for name, value in flags.items():
        if record.flags.get(name) != value and name != "log_max_mb":  # of new actors
            was = record.flags.get(name, "its default")
            say(f"note: --{name} remains {was}: --apply does not change flags")
    if sum(p.job == "evaluator" for p in wanted) != sum(
        p.job == "evaluator" for p in record.processes
    ):
        say("note: --apply does not add or remove evaluators; --stop the run and restart it")
    if wanted[0].command != record.learners:
        say("note: --apply does not change learners; --stop the run and restart it")


def _find_differences(
    run: Run, record: Record, wanted: Sequence[Process]
) -> tuple[list[Process], list[str]]:
    """Return the actors to start, and the names of the actors to stop.

    Raises UserError if a new actor's host lacks the project.
    """
    states = run.states()
    present: dict[frozenset[tuple[str, str | int]], list[str]] = collections.defaultdict(list)
    for old in record.processes:
        state = states[old.name]
        if old.job == "actor" and not state.is_to_stop and not state.has_ended:
            present[frozenset(old.kind.items())].append(old.name)
    added = []
    for process in wanted:
        alike = present[frozenset(process_plan.row_signature(process.worker).items())]
        if process.job != "actor":
            continue
        if alike:
            alike.pop(0)  # the oldest keeps running
        elif missing := process.installation.missing:
            raise UserError(
                f"nothing was changed: row {process.worker.line}: {missing} on "
                f"{process.worker.ip}: --deploy copies the project there; or set workdir "
                f"or python in the CSV"
            )
        else:
            added.append(process)
    return added, [name for names in present.values() for name in names]


def _give_up_hosts(
    run: Run, record: Record, processes: Sequence[ProcessEntry], removed: Sequence[str]
) -> set[str]:
    """Return unreachable hosts that have no process of the run any more.

    Their removed actors are recorded as pending stops: they end once the host can be reached.
    """
    wanted = {p.place for p in processes if p.name not in removed}
    left = {record.host_id_of(name) for name in removed} - wanted - {"", *record.learner_places}
    given_up = {host_id for host_id in left if run.why_away(host_id)}
    for host_id in given_up:
        add_pending_stop(host_id, record.id)
    return given_up
