"""--apply: actors of a running run, as the CSV has them now. Learners stay as they are."""

import collections
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from launcher import hosts, plan, start
from launcher.config import LauncherConfig
from launcher.plan import Process
from launcher.registry import Record, Run
from launcher.task import FINAL
from launcher.workers import Worker


class Over(Exception):
    """There is nothing to change."""


def apply(
    run: Run,
    config: LauncherConfig,
    workers: Sequence[Worker],
    flags: dict[str, str],
    log_max_mb: float,
) -> None:
    """Adds and removes; says what, and what cannot be."""
    if not run.goes_on():
        raise Over(f"{run.name} is not running: start it without --apply")
    hosts.check(workers)
    with run.being_changed():
        record = run.record
        assert record
        for name, value in flags.items():
            if record.settings.get(name) != value:
                print(f"note: --{name} stays as it was when the run was started")
        wanted = plan.make(workers, config, record.settings)
        if wanted[0].command != record.learners:
            print("note: learners cannot change while a run goes on: --stop it and start it again")
        added, removed = _differences(run, record, wanted)
        first = 1 + max((_number(p) for p in record.processes if p["job"] == "actor"), default=-1)
        new = [
            plan.actor(process.worker, first + i, config, record.settings)
            for i, process in enumerate(added)
        ]
        for name in removed:
            run.order("save", name)
        kept = [process for process in record.processes if process["name"] not in removed]
        processes = [*kept, *map(start.describe, new)]
        run.write(dataclasses.replace(record, processes=processes))
        if new:
            start.add(run, new, config, record, log_max_mb)
    print(f"{run.name}: {len(new)} actors added, {len(removed)} removed")


def _differences(
    run: Run, record: Record, wanted: Sequence[Process]
) -> tuple[list[Process], list[str]]:
    """Actors that are wanted and not there; names of those that are there and not wanted."""
    states = run.states()
    there: dict[str, list[str]] = collections.defaultdict(list)
    for old in record.processes:
        if old["job"] == "actor" and states[old["name"]]["state"] not in (*FINAL, "lost"):
            there[_kind(old["kind"])].append(old["name"])
    added = []
    for process in wanted:
        if process.job == "actor":
            alike = there[_kind(process.kind)]
            if alike:
                alike.pop(0)  # the oldest stays
            else:
                added.append(process)
    return added, [name for names in there.values() for name in names]


def _kind(kind: dict[str, Any]) -> str:
    return json.dumps(kind, sort_keys=True)


def _number(process: dict[str, Any]) -> int:
    return int(process["name"].removeprefix("actor-"))
