"""The rows of a CSV as places: each is one for a learner, or for `count` actors.

A trial has the rows that it took, until it has ended; all others are free. Its learners stand on
one host if they can, and its actors beside them. A host whose number of cores is known has room for
trials with so many.
"""

import csv
import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
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
        self._rows = [r for r, n in zip(single, counts, strict=True) for _ in range(n)]
        self.cores: dict[str, int] = {}  # by host id, where their number is known
        self.lost: set[str] = set()  # ids of hosts that cannot be reached

    def why_too_small(self) -> str:
        """Return what a trial lacks while no other has a place; empty if it lacks nothing."""
        needs = self._needs
        learners = self._learners(self._rows)
        if len(learners) < needs.learners:
            gpus = f" with {needs.gpus} GPUs" * bool(needs.gpus)
            return (
                f"a trial needs {needs.learners} rows of learners{gpus}, and the CSV has "
                f"{len(learners)}"
            )
        actors = sum(row.job == "actor" for row in self._rows)
        if actors < needs.actors:
            return f"a trial needs {needs.actors} actors, and the CSV has {actors}"
        most = max(self.cores.get(host_id_of(row), needs.cores) for row in learners)
        if most < needs.cores:
            return f"a trial needs {needs.cores} cores, and no learner's host has more than {most}"
        return ""

    def take(self, taken: Iterable[Sequence[Worker]]) -> list[Worker]:
        """Return rows for one trial; none if there is no room beside others, which have `taken`.

        Some of these may be gone from the CSV.
        """
        held = [rows for rows in taken if rows]
        of_others = Counter(_place(row) for rows in held for row in rows)
        usable = []
        for row in self._rows:
            if of_others[place := _place(row)]:
                of_others[place] -= 1
            elif host_id_of(row) not in self.lost:
                usable.append(row)
        used = Counter(host_id_of(rows[0]) for rows in held)  # by trials, by host id
        learners = [
            row
            for row in self._learners(usable)
            if (host_id := host_id_of(row)) not in self.cores
            or self.cores[host_id] >= self._needs.cores * (used[host_id] + 1)
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
        chosen = {host_id_of(row) for row in learners}
        # Beside the learners first, then where most places are left.
        actors.sort(
            key=lambda r: (host_id_of(r) in chosen, of_actors[host_id_of(r)]),
            reverse=True,
        )
        return [*learners, *actors[: self._needs.actors]]

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
