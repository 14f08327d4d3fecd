"""The rows of a CSV that no trial has: each is a place for one learner, or for `count` actors.

A trial takes rows and gives them back. Its learners stand on one host if they can, and its actors
beside them. A host whose number of cores is known has room for trials with so many.
"""

import csv
import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from launcher.experiments.file import Needs
from launcher.hosts.hosts import host_id_of
from launcher.plan.workers_csv import ANY_LEARNER, COLUMNS, Worker

_EMPTY = Worker(0, "", "")


class Pool:
    """The places of all hosts."""

    def __init__(self, rows: Sequence[Worker], needs: Needs):
        """Hold the rows of learners and actors; evaluators have no place in an experiment."""
        self._needs = needs
        self._host_ids = {row.ip: host_id_of(row) for row in rows}
        single = [dataclasses.replace(r, count=1, learner=ANY_LEARNER) for r in rows]
        counts = [row.count for row in rows]
        self._free = [r for r, n in zip(single, counts, strict=True) for _ in range(n)]
        self._cores: dict[str, int] = {}  # that are free, by host id
        self._lost: set[str] = set()  # ids of hosts that cannot be reached

    @property
    def host_ids(self) -> list[str]:
        """The ids of all hosts; "" is this machine."""
        return sorted(set(self._host_ids.values()))

    def host_of(self, rows: Sequence[Worker]) -> str:
        """Return the id of a trial's first host."""
        return self._host_ids.get(rows[0].ip, "") if rows else ""

    def set_cores(self, cores: Mapping[str, int]) -> None:
        """Set the number of cores of hosts, by host id, before any trial takes a place."""
        self._cores = dict(cores)

    def set_lost(self, host_ids: Set[str]) -> None:
        """Set which hosts cannot be reached: they have no free places."""
        self._lost = set(host_ids)

    def why_too_small(self) -> str:
        """Return what a trial lacks while no other has a place; empty if it lacks nothing."""
        needs = self._needs
        learners = self._learners(self._free)
        if len(learners) < needs.learners:
            gpus = f" with {needs.gpus} GPUs" * bool(needs.gpus)
            return (
                f"a trial needs {needs.learners} rows of learners{gpus}, and the CSV has "
                f"{len(learners)}"
            )
        actors = sum(row.job == "actor" for row in self._free)
        if actors < needs.actors:
            return f"a trial needs {needs.actors} actors, and the CSV has {actors}"
        most = max(self._cores.get(self._host_ids[row.ip], needs.cores) for row in learners)
        if most < needs.cores:
            return f"a trial needs {needs.cores} cores, and no learner's host has more than {most}"
        return ""

    def take(self) -> list[Worker]:
        """Take rows for one trial; the result is empty if there is no room."""
        usable = [row for row in self._free if self._host_ids[row.ip] not in self._lost]
        learners = [
            row
            for row in self._learners(usable)
            if self._cores.get(self._host_ids[row.ip], self._needs.cores) >= self._needs.cores
        ]
        actors = [row for row in usable if row.job == "actor"]
        if len(learners) < self._needs.learners or len(actors) < self._needs.actors:
            return []
        of_learners, of_actors = (
            Counter(self._host_ids[r.ip] for r in x) for x in (learners, actors)
        )

        def room(row: Worker) -> tuple[int, int]:
            host_id = self._host_ids[row.ip]
            return (
                min(of_learners[host_id], self._needs.learners),
                min(of_actors[host_id], self._needs.actors),
            )

        learners = sorted(learners, key=room, reverse=True)[: self._needs.learners]
        used = {self._host_ids[row.ip] for row in learners}
        # Beside the learners first, then where most places are left.
        actors.sort(
            key=lambda r: (self._host_ids[r.ip] in used, of_actors[self._host_ids[r.ip]]),
            reverse=True,
        )
        rows = [*learners, *actors[: self._needs.actors]]
        self.take_again(rows)
        return rows

    def take_again(self, rows: Sequence[Worker]) -> None:
        """Take the rows of a trial that is running already; they may be gone from the CSV."""
        for row in rows:
            same = [free for free in self._free if _place(free) == _place(row)]
            if same:
                self._free.remove(same[0])
        if rows and (host_id := self._host_ids.get(rows[0].ip)) in self._cores:
            self._cores[host_id] -= self._needs.cores

    def give_back(self, rows: Sequence[Worker]) -> None:
        """Take back the rows of a trial that has ended."""
        self._free += rows
        if rows and (host_id := self._host_ids.get(rows[0].ip)) in self._cores:
            self._cores[host_id] += self._needs.cores

    def _learners(self, rows: Sequence[Worker]) -> list[Worker]:
        """Return the rows of learners that have the GPUs that a trial needs."""
        return [r for r in rows if r.job == "learner" and len(r.gpus) >= self._needs.gpus]


def _place(row: Worker) -> Worker:
    """Return a row without its line and its password, which a trial's CSV need not have."""
    return dataclasses.replace(row, line=0)


def rows_here(needs: Needs, trials: int) -> list[Worker]:
    """Return the rows of so many trials on this machine, for an experiment without a CSV."""
    jobs = ["learner"] * needs.learners + ["actor"] * needs.actors
    return [Worker(0, job, "localhost") for job in jobs * trials]


def write_csv(path: Path, rows: Sequence[Worker]) -> None:
    """Write the CSV of one trial, which only its owner can read: it may have passwords."""
    used = [
        name
        for name in COLUMNS
        if name in ("job", "ip") or any(getattr(row, name) != getattr(_EMPTY, name) for row in rows)
    ]
    with open(path, "w", newline="", opener=_private) as file:
        writer = csv.writer(file)
        writer.writerow(used)
        for row in rows:
            empty = {name: getattr(_EMPTY, name) for name in used}
            cells = {name: getattr(row, name) for name in used}
            writer.writerow(["" if cells[n] == empty[n] else cells[n] for n in used])


def _private(path: str, mode: int) -> int:
    return os.open(path, mode, 0o600)
