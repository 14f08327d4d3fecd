"""The rows of a CSV that no trial has: each is a place for one learner, or for `count` actors.

A trial takes rows and gives them back. Its learners stand on one host if they can, and its actors
beside them. A host whose number of cores is known has room for trials with so many.
"""

import csv
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from launcher.experiments.file import Needs
from launcher.hosts.hosts import host_id_of
from launcher.plan.workers_csv import ANY_LEARNER, COLUMNS, Worker
from launcher.supervise.json_files import private

_EMPTY = Worker(0, "", "")


class Pool:
    """The places of all hosts."""

    def __init__(self, rows: Sequence[Worker], needs: Needs):
        """Hold the rows of learners and actors; evaluators have no place in an experiment."""
        self._needs = needs
        self.host_ids = sorted({host_id_of(row) for row in rows})  # "" is this machine
        single = [dataclasses.replace(r, count=1, learner=ANY_LEARNER) for r in rows]
        counts = [row.count for row in rows]
        self._free = [r for r, n in zip(single, counts, strict=True) for _ in range(n)]
        self._taken: list[Worker] = []
        self._cores: dict[str, int] = {}  # by host id, where their number is known
        self._used: Counter[str] = Counter()  # cores that trials have, by host id
        self._lost: set[str] = set()  # ids of hosts that cannot be reached

    def set_cores(self, cores: Mapping[str, int]) -> None:
        """Set the number of cores of these hosts, by host id."""
        self._cores |= cores

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
        most = max(self._cores.get(host_id_of(row), needs.cores) for row in learners)
        if most < needs.cores:
            return f"a trial needs {needs.cores} cores, and no learner's host has more than {most}"
        return ""

    def take(self) -> list[Worker]:
        """Take rows for one trial; the result is empty if there is no room."""
        usable = [row for row in self._free if host_id_of(row) not in self._lost]
        learners = [
            row
            for row in self._learners(usable)
            if (host_id := host_id_of(row)) not in self._cores
            or self._cores[host_id] - self._used[host_id] >= self._needs.cores
        ]
        actors = [row for row in usable if row.job == "actor"]
        if len(learners) < self._needs.learners or len(actors) < self._needs.actors:
            return []
        of_learners, of_actors = (Counter(host_id_of(r) for r in x) for x in (learners, actors))

        def room(row: Worker) -> tuple[int, int]:
            host_id = host_id_of(row)
            return (
                min(of_learners[host_id], self._needs.learners),
                min(of_actors[host_id], self._needs.actors),
            )

        learners = sorted(learners, key=room, reverse=True)[: self._needs.learners]
        used = {host_id_of(row) for row in learners}
        # Beside the learners first, then where most places are left.
        actors.sort(
            key=lambda r: (host_id_of(r) in used, of_actors[host_id_of(r)]),
            reverse=True,
        )
        rows = [*learners, *actors[: self._needs.actors]]
        self.take_again(rows)
        return rows

    def take_again(self, rows: Sequence[Worker]) -> None:
        """Take the rows of a trial that is running already; they may be gone from the CSV."""
        self._move(rows, self._free, self._taken, self._needs.cores)

    def give_back(self, rows: Sequence[Worker]) -> None:
        """Take back the rows of a trial that has ended, but those that are gone from the CSV."""
        self._move(rows, self._taken, self._free, -self._needs.cores)

    def _move(
        self, rows: Sequence[Worker], source: list[Worker], target: list[Worker], cores: int
    ) -> None:
        for row in rows:
            if same := [each for each in source if _place(each) == _place(row)]:
                source.remove(same[0])
                target.append(same[0])
        if rows:
            self._used[host_id_of(rows[0])] += cores

    def _learners(self, rows: Sequence[Worker]) -> list[Worker]:
        """Return the rows of learners that have the GPUs that a trial needs."""
        return [r for r in rows if r.job == "learner" and len(r.gpu_names) >= self._needs.gpus]


def _place(row: Worker) -> Worker:
    """Return a row without its line and its password, which may differ in a trial's CSV."""
    return dataclasses.replace(row, line=0, ssh_password="")


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
    with open(path, "w", newline="", opener=private) as file:
        writer = csv.writer(file)
        writer.writerow(used)
        for row in rows:
            empty = {name: getattr(_EMPTY, name) for name in used}
            cells = {name: getattr(row, name) for name in used}
            writer.writerow(["" if cells[n] == empty[n] else cells[n] for n in used])
