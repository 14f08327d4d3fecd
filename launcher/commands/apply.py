"""--apply: actors of a running run, as the CSV has them now. Learners stay as they are."""

import collections
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.node.run_registry import Record, Run
from launcher.node.task import FINAL, LEARNERS
from launcher.plan import process_plan
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import targets
from launcher.running import connect, start
from launcher.running.pending_stops import Unfinished
from launcher.running.run_control import Everywhere


class Over(Exception):
    """There is nothing to change."""


def apply(
    everywhere: Everywhere,
    config: LauncherConfig,
    workers: Sequence[Worker],
    flags: dict[str, str],
    log_max_mb: float,
) -> None:
    """Adds and removes; says what, and what cannot be."""
    run, hosts = everywhere.run, everywhere.hosts
    if not run.goes_on():
        raise Over(f"{run.name} is not running: start it without --apply")
    hosts.targets |= targets(workers)
    unreached = hosts.reach(print, connect.pythons(workers, config.deploy))
    for sentence in unreached.values():
        print(f"note: {sentence}")
    everywhere.end_leftovers(print)
    grounds = connect.survey(workers, hosts, config.deploy, print)
    with run.being_changed():
        record = run.record
        assert record
        for name, value in flags.items():
            if record.flags.get(name) != value:
                print(f"note: --{name} stays as it was when the run was started")
        wanted = process_plan.make(workers, config, record.flags, grounds)
        if sum(p.job == "evaluator" for p in wanted) != sum(
            p["job"] == "evaluator" for p in record.processes
        ):
            print("note: evaluators stay as they are while a run goes on")
        if wanted[0].command != record.learners:
            print("note: learners cannot change while a run goes on: --stop it and start it again")
        added, removed = _differences(run, record, wanted)
        new = [
            process_plan.actor(process.worker, record.next_actor + i, config, record.flags, grounds)
            for i, process in enumerate(added)
        ]
        for name in removed:
            everywhere.order("save", name)
            if (where := record.place(name)) and (why := run.away(where)):
                print(f"note: {name} goes on until {where} answers ({why})")
        # Those that were removed stay in the record: they may take a moment to end.
        learners = record.place(LEARNERS)
        told = [start.describe(process, learners, record) for process in new]
        processes = [*record.processes, *told]
        given_up = _given_up(run, record, processes, removed)
        processes = [p for p in processes if p.get("place") not in given_up]
        reached = {w: how for w, how in connect.described(hosts).items() if w not in given_up}
        next_actor = record.next_actor + len(new)
        before = record
        record = dataclasses.replace(
            record,
            processes=processes,
            next_actor=next_actor,
            targets=reached,
            pythons=record.pythons
            | {where: connect.pythons(workers, config.deploy)(where) for where in hosts.targets},
            csvs=list(dict.fromkeys([str(Path(config.workers_csv_path).absolute()), *record.csvs])),
        )
        new_places = [where for where in hosts.there if where not in before.targets]
        run.write(record)
        start.begin(run, hosts, record, [p for p in new_places if p not in unreached], print)
        if new:
            start.add(run, hosts, new, config, record, log_max_mb)
    print(f"{run.name}: {len(new)} actors added, {len(removed)} removed")


def _given_up(
    run: Run, record: Record, processes: Sequence[dict[str, Any]], removed: Sequence[str]
) -> set[str]:
    """Places that do not answer and are not wanted any more: what is left there ends when they do,
    and nobody waits for them."""
    wanted = {p.get("place", "") for p in processes if p["name"] not in removed}
    left = {record.place(name) for name in removed} - wanted - {"", *record.learner_places}
    given_up = {where for where in left if run.away(where)}
    for where in given_up:
        Unfinished().add(where, record.id)
    return given_up


def _differences(
    run: Run, record: Record, wanted: Sequence[Process]
) -> tuple[list[Process], list[str]]:
    """Actors that are wanted and not there; names of those that are there and not wanted."""
    states = run.states()
    there: dict[str, list[str]] = collections.defaultdict(list)
    for old in record.processes:
        leaves = (run.folder / old["name"] / "stop").exists()
        over = states[old["name"]]["state"] in (*FINAL, "lost")
        if old["job"] == "actor" and not leaves and not over:
            there[_kind(old["kind"])].append(old["name"])
    added = []
    for process in wanted:
        if process.job == "actor":
            alike = there[_kind(process_plan.kind(process.worker))]
            if alike:
                alike.pop(0)  # the oldest stays
            else:
                added.append(process)
    return added, [name for names in there.values() for name in names]


def _kind(kind: dict[str, Any]) -> str:
    return json.dumps(kind, sort_keys=True)
