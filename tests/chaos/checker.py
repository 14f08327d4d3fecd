"""Checks a run that was disturbed, by its files alone: python tests/chaos/checker.py FOLDER.

It prints one finding per line and exits with code 1 if there is any. `evidence` says what FOLDER
holds. No counter of the program is believed: which steps were trained on is read from the
observations themselves, and which updates a checkpoint holds from the chain that it ends
(`recording`).

The history of a checkpoint is the sequence of updates from the first one to the one that the
checkpoint names, each named by the next. A restart goes back to a checkpoint, so the updates that
were made after that checkpoint are in the history of no later one: what they trained on is not
counted there, and would not be trained twice if it were trained again. The rules:

  * In one history no step of an environment is in two batches, or twice in one.
  * The steps of a checkpoint and of a row of metrics are those of the updates before it.
  * Each learner process makes its updates in order, one by one, from the state of an update that
    was made before. All learners make the same ones.
  * An unroll was played by a policy which its learner process started with or published since, and
    never by an older one than the unroll of the same environment before it.
  * Every checkpoint with a final name, on any host, can be loaded.
  * No program prints a traceback, and nothing is left on any host.
  * Outside of disturbances the run makes at least 60% of its undisturbed rate of steps, and never
    pauses for long.
"""

import collections
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.chaos import evidence, rates
from tests.chaos.evidence import Broken, Saved, Update

_SHOWN = 5  # findings of one kind that are printed


def check(folder: Path) -> list[str]:
    """Return what is wrong with a run that left these files."""
    sessions = evidence.read_sessions(folder)
    metrics = evidence.read_metrics(folder)
    history = History(sessions)
    saved, broken = _load_all(evidence.checkpoint_folders(folder))
    left = (folder / "left.txt").read_text().splitlines()
    kinds: list[Iterable[str]] = [
        broken,
        check_order(sessions),
        check_versions(sessions),
        check_histories(history, saved),
        *(check_metrics(history, host, rows) for host, rows in metrics.items()),
        rates.check_rate(evidence.read_events(folder), sessions),
        check_logs(evidence.read_logs(folder)),
        [f"left: {line}" for line in left],
    ]
    if not any(metrics.values()):
        kinds.append(["no host has a row of metrics"])
    if not saved:
        kinds.append(["no checkpoint is left"])
    return [finding for kind in kinds for finding in _first_of(list(kind))]


def summary(folder: Path) -> str:
    """Return in one line how much was checked."""
    sessions = evidence.read_sessions(folder)
    updates = {update.after for session in sessions for update in session}
    rows = sum(map(len, evidence.read_metrics(folder).values()))
    checkpoints = len(evidence.checkpoint_folders(folder))
    events = evidence.read_events(folder)
    calm, quiet, seconds = rates.measure(events, sessions)
    times = sorted(update.time for session in sessions for update in session)
    pause = max((other - one for one, other in itertools.pairwise(times)), default=0.0)
    return (
        f"checked {len(updates):,} updates of {len(sessions)} learner processes, {rows:,} rows and "
        f"{checkpoints} checkpoints; {calm:.0f} steps/s undisturbed, {quiet:.0f} in {seconds:.0f} "
        f"s outside of disturbances; the longest time without an update was {pause:.0f} s"
    )


class History:
    """All updates that were made, in chains."""

    def __init__(self, sessions: Sequence[Sequence[Update]]):
        self.made = collections.defaultdict[int, list[Update]](list)  # by the chain after them
        for update in (update for session in sessions for update in session):
            self.made[update.after].append(update)
        self._numbered = collections.defaultdict[int, set[int]](set)  # chains by their last update
        for after, learners in self.made.items():
            self._numbered[learners[0].update].add(after)
        self._steps = {0: 0}  # by chain: the steps of its history
        for after in sorted(self.made, key=lambda after: self.made[after][0].update):
            before = self._steps.get(self.made[after][0].before)
            if before is not None:
                self._steps[after] = before + sum(each.steps for each in self.made[after])

    def until(self, chain: int) -> list[list[Update]] | None:
        """Return the updates up to one, the last first; None if some were not recorded."""
        found = []
        while chain:
            if chain not in self.made:
                return None
            found.append(self.made[chain])
            chain = found[-1][0].before
        return found

    def steps_after(self, updates: int) -> set[int]:
        """Return the steps that a run may have made with this number of updates."""
        found = {0} if not updates else set()
        chains = self._numbered.get(updates, set())
        return found | {self._steps[after] for after in chains if after in self._steps}

    def steps_until(self, chain: int) -> int | None:
        """Return the steps of a chain's history."""
        return self._steps.get(chain)


def check_order(sessions: Sequence[Sequence[Update]]) -> Iterator[str]:
    """Find learner processes that skip or repeat updates, or begin with an unknown state."""
    known = {update.after for session in sessions for update in session} | {0}
    for session in sessions:
        first = session[0]
        if first.before not in known:
            yield f"learner {first.rank} began update {first.update} with a state nobody has made"
        if (first.before == 0) != (first.update == 1):
            yield f"learner {first.rank} began with update {first.update} of another history"
        for one, other in itertools.pairwise(session):
            if (other.update, other.before) != (one.update + 1, one.after):
                yield f"learner {one.rank}: update {other.update} follows update {one.update}"


def check_versions(sessions: Sequence[Sequence[Update]]) -> Iterator[str]:
    """Find unrolls of policies that did not exist, or that are older than those before them."""
    starts = collections.defaultdict[int, list[Update]](list)  # by the first update of all learners
    for session in sessions:
        starts[session[0].after] += session
    for updates in starts.values():
        began = min(update.update for update in updates) - 1
        played = collections.defaultdict[int, list[tuple[int, int]]](list)
        for update in updates:
            for column in update.columns:
                version = column["version"]
                played[column["instance"]].append((column["first"], version))
                if not began <= version < update.update:
                    yield (
                        f"update {update.update} of a learner that began with update {began + 1} "
                        f"trained on an unroll of policy version {version}"
                    )
        for instance, unrolls in played.items():
            in_order = sorted(unrolls)
            for (_, one), (first, other) in itertools.pairwise(in_order):
                if other < one:
                    yield (
                        f"environment {instance:x} played version {other} from step {first} on, "
                        f"after version {one}"
                    )


def check_histories(history: History, saved: Sequence[Saved]) -> Iterator[str]:
    """Find steps that were trained or counted twice, or not counted, in checkpoints' histories."""
    checked = set[int]()  # chains whose histories were checked with those of longer ones
    for each in sorted(saved, key=lambda each: -each.updates):
        if each.recorded != each.updates or str(each.updates) != each.path.name.lstrip("0"):
            yield f"{each.path} says update {each.updates}, but it holds {each.recorded} updates"
        updates = history.until(each.chain)
        if updates is None:
            yield f"{each.path} holds updates that no learner has recorded"
            continue
        if each.steps != history.steps_until(each.chain) or each.frames != each.steps:
            yield (
                f"{each.path} counts {each.frames:.0f} frames of {each.steps} steps, but its "
                f"updates were made with {history.steps_until(each.chain)}"
            )
        if each.chain not in checked:
            yield from _check_history(each.path, updates)
        checked |= {learners[0].after for learners in updates}


def _check_history(path: Path, updates: Sequence[Sequence[Update]]) -> Iterator[str]:
    trained = collections.defaultdict[int, list[tuple[int, int, int]]](list)  # by environment
    for learners in updates:
        one = learners[0]
        ranks = sorted(each.rank for each in learners)
        if ranks != list(range(one.learners)):
            yield f"{path}: learners {ranks} of {one.learners} recorded update {one.update}"
        if {(each.before, each.update) for each in learners} != {(one.before, one.update)}:
            yield f"{path}: the learners disagree on what was before update {one.update}"
        for column in (column for each in learners for column in each.columns):
            unroll = column["first"], column["last"], one.update
            trained[column["instance"]].append(unroll)
            if not column["whole"]:
                yield f"{path}: an unroll of update {one.update} mixes environments or skips steps"
    for instance, unrolls in trained.items():
        latest, by = -1, 0
        for first, last, update in sorted(unrolls):
            if first <= latest:
                yield (
                    f"{path}: steps {first} to {min(last, latest)} of environment {instance:x} "
                    f"were trained twice, in updates {by} and {update}"
                )
            if last > latest:
                latest, by = last, update


def check_metrics(history: History, host: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Find rows whose counts are not those of the updates before them."""
    for row in rows:
        updates, steps = row["updates"], row["steps"]
        # The row's steps may have been read just before those of the last update were added.
        possible = history.steps_after(updates) | history.steps_after(updates - 1)
        if row["frames"] != steps or steps not in possible:
            yield (
                f"metrics on {host}: {row['frames']:.0f} frames, {steps} steps after {updates} "
                f"updates, which were made with {sorted(possible)} steps"
            )


def check_logs(logs: dict[Path, str]) -> Iterator[str]:
    """Find tracebacks, with the last line of each."""
    for path, text in logs.items():
        for after in text.split("Traceback (most recent call last):")[1:]:
            lines = (line for line in after.splitlines() if line.strip())
            error = next((line for line in lines if not re.match(r"(\[[^]]*\])?\s\s", line)), "")
            yield f"{path} has a traceback: {error}"


def _load_all(paths: Sequence[Path]) -> tuple[list[Saved], list[str]]:
    """Return the checkpoints that can be loaded, and findings about the others."""
    saved, broken = [], []
    for path in paths:
        try:
            saved.append(evidence.load(path))
        except Broken as error:
            broken.append(f"{path} cannot be loaded: {error}")
    return saved, broken


def _first_of(findings: list[str]) -> list[str]:
    more = len(findings) - _SHOWN
    return [*findings[:_SHOWN], *([f"... and {more} more of this kind"] if more > 0 else [])]


if __name__ == "__main__":
    found = check(Path(sys.argv[1]))
    print(*found, summary(Path(sys.argv[1])), sep="\n")
    sys.exit(bool(found))
