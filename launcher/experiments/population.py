"""The search `population`: members train side by side, and the worst go on from the best.

    [search]
    kind = "population"
    trials = 4                # the members
    exchange_frames = 1e4     # between two comparisons; 0: a tenth of total_environment_frames
    share = 0.25              # of the members takes from as many of the best, at least one
    factors = [0.8, 1.2]      # by one of which each value is multiplied
    resample = 0.25           # probability that it is drawn anew instead

This is population based training (Jaderberg et al. 2017, arXiv 1711.09846). Members are compared by
their returns at equal frames, once all of them were there; none waits for it. One of the worst is
saved and stopped, gets the newest checkpoint of one of the best in place of its own ones, and goes
on by its command with other values. The rest are not touched. All of it is in population.jsonl:

    {"event": "compared", "round": 1, "frames": 1e4, "scores": {"0": 21.5, ...}, "takes": {"3": 1}}
    {"event": "copied", "member": 3, "from": 1, "round": 1, "values": {...}, "before": {...},
     "checkpoint": "0000000120", "frames": 10240}
    {"event": "took", ..., "row": 57}                 rows of metrics that the member had until then
    {"event": "confirmed", ..., "learning_rate": 2e-4}      or "not confirmed", "why"; or "skipped"

A process that is killed between "copied" and "took" exchanges the checkpoints when the same command
starts the member again.
"""

import contextlib
import json
import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from impala_mm.config import flags, setting_files
from impala_mm.records import checkpoint, run_folder
from impala_mm.records.run_contents import POPULATION, is_number, read_records
from launcher.experiments.file import Axis, Experiment, Values, describe
from launcher.experiments.journal import FINAL, Journal
from launcher.experiments.search import CONTINUE, PAUSE, Search
from launcher.experiments.trial import METRIC, Trial
from launcher.follow.console import say
from launcher.hosts.checkpoints import TAKEN
from launcher.plan.request import UserError

_COPY = "checkpoints-of-another"  # in a member's folder, what takes the place of its own
# Seconds after its first update in which a restarted member has to report its new values: copies of
# its settings come from its host every 20 s.
_PATIENCE = 60.0


class Population(Search):
    """Members that are compared, and of which the worst take from the best."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        "exchange_frames": 0.0,
        "share": 0.25,
        "factors": [0.8, 1.2],
        "resample": 0.25,
    }

    def __init__(self, experiment: Experiment, asked: Mapping[int, Values]):
        super().__init__(experiment, asked)
        config, options = experiment.check({}), experiment.options
        _refuse_wrong(experiment, config)
        self.together = experiment.trials
        self._total = float(config.total_environment_frames)
        self._every = options["exchange_frames"] or self._total / 10
        self._over = {r["trial"] for r in Journal(experiment.folder).rows if r["event"] in FINAL}
        self._scores: dict[int, float] = {}  # of the next comparison
        self._latest: dict[int, float] = {}
        self._live: dict[int, float] = {}  # since when (time.monotonic()) restarted members train
        self._round, self._takes = 0, dict[int, int]()  # the last comparison, and who takes of whom
        self._last: dict[int, dict[str, Any]] = {}  # the last row about each member
        self._path = experiment.folder / POPULATION
        for row in read_records(self._path):
            self._remember(row)

    def _remember(self, row: dict[str, Any]) -> None:
        if row["event"] == "compared":
            self._round = row["round"]
            self._takes = {int(member): source for member, source in row["takes"].items()}
            return
        member = row["member"]
        if "values" in row:
            self._last[member], self.asked[member] = row, row["values"]
        if row["event"] in ("took", "skipped"):
            self._takes.pop(member, None)

    def _write(self, event: str, row: dict[str, Any]) -> None:
        row = {"event": event, "time": 0.0, **row} | {"event": event, "time": round(time.time(), 1)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._remember(row)

    # -- what the experiment calls

    def ask(self, number: int) -> Values | None:
        """Return random values for a member."""
        self.asked.setdefault(number, self.experiment.draw(number))
        return self.asked[number]

    def tell(self, number: int, frames: float, score: float) -> str:
        """Compare the members if all have been there; PAUSE a member that takes from another."""
        self._over.discard(number)
        self._latest[number] = score
        self._confirm(number)
        self._compare(number, frames)
        last = self._last.get(number, {})
        is_copied = last.get("event") == "copied"
        if not is_copied and (source := self._takes.get(number)) is not None:
            is_copied = self._copy(number, source, self._round * self._every)
        return PAUSE if is_copied else CONTINUE

    def starts(self, number: int, values: Values) -> Values:
        """Exchange the checkpoints of a member that is about to start; return its values."""
        last = self._last.get(number)
        if last is None:
            return values
        if last["event"] == "copied":
            exchange(self._folder(number))
            for known in (self._scores, self._live):
                known.pop(number, None)
            self._write("took", {**last, "row": last["row"] + len(self._metrics(number))})
        return dict(last["values"])

    def ended(self, number: int, score: float | None, state: str) -> bool:
        """Let a member that failed, such as by weights that are NaN, take from the best one."""
        self._over.add(number)
        if state != "failed":
            return False
        others = {m: s for m, s in self._latest.items() if m != number}
        last = self._last.get(number, {})
        if last.get("failed") and last["round"] == self._round:
            return False  # it has failed again since
        best = sorted(others, key=lambda member: others[member], reverse=True)
        return any(self._copy(number, source, 0.0, failed=True) for source in best)

    # -- comparisons

    def _compare(self, number: int, frames: float) -> None:
        """Compare the members if this one is the last to reach the frames of a comparison."""
        at = (self._round + 1) * self._every
        if frames < at or at >= self._total:
            return
        for member in {number, *self._over} - set(self._scores):
            reached = [row for row in self._metrics(member) if is_number(row.get(METRIC))]
            there = [row[METRIC] for row in reached if row["frames"] >= at]
            if there or (member in self._over and reached):
                self._scores[member] = there[0] if there else reached[-1][METRIC]
        members = set(range(self.experiment.trials))
        failed = {m for m in self._over if m not in self._scores}
        if set(self._scores) | failed < members or len(self._scores) < 2:
            return
        share, draws = self.experiment.options["share"], self._draws(-1)
        takes = choose(self._scores, self._over, share, draws)
        scores = {str(m): self._scores[m] for m in sorted(self._scores)}
        self._scores = {}
        self._write(
            "compared", {"round": self._round + 1, "frames": at, "scores": scores, "takes": takes}
        )

    def _copy(self, number: int, source: int, least: float, failed: bool = False) -> bool:
        """Copy the newest checkpoint of `source` beside those of a member; return whether it could.

        It has at least this many frames: the source is asked for one.
        """
        about, path = None, self._folder(source)
        for path in reversed(checkpoint.of_run(self._folder(source))):
            about = checkpoint.read(path)
            if about and least <= about.frames < self._total:
                break
            about = None
        row: dict[str, Any] = {"member": number, "from": source, "round": self._round}
        if about is None:
            if source in self._over:
                self._write("skipped", {**row, "why": "the other one has ended"})
            elif not failed:
                (self._folder(source) / run_folder.SAVE_REQUEST).touch()
            return False
        try:
            copy_beside(path, self._folder(number))
        except (OSError, checkpoint.Damaged):  # it was removed meanwhile: there is a newer one
            return False
        before = self.asked[number]
        values = perturb(self.experiment, self.asked[source], before, self._draws(number))
        row |= {"before": before, "values": values, "checkpoint": path.name, "frames": about.frames}
        row |= {"row": self._last.get(number, {}).get("row", 0), "failed": failed}
        self._write("copied", row)
        say(f"trial {number} goes on from trial {source}, with {describe(values)}")
        return True

    def _confirm(self, number: int) -> None:
        """See whether a member that was restarted reports its new values."""
        last = self._last.get(number, {})
        if last.get("event") != "took":
            return
        updated = [row for row in self._metrics(number) if is_number(row.get("learning_rate"))]
        if not updated:
            return
        since = self._live.setdefault(number, time.monotonic())
        settings, row = run_folder.recorded_settings(self._folder(number)), updated[-1]
        why = why_not_live(last["values"], settings, row, last["frames"])
        if why and time.monotonic() - since < _PATIENCE:
            return
        if why:
            say(f"warning: trial {number} does not have its new values: {why}")
        self._write(
            "not confirmed" if why else "confirmed",
            {**last, "learning_rate": row["learning_rate"], **({"why": why} if why else {})},
        )

    def _folder(self, number: int) -> Path:
        return Trial(self.experiment, number, {}).folder

    def _metrics(self, number: int) -> list[dict[str, Any]]:
        """Return a member's rows of metrics since it took its last checkpoint of another."""
        rows = read_records(self._folder(number) / "metrics.jsonl")
        return rows[self._last.get(number, {}).get("row", 0) :]

    def _draws(self, number: int) -> random.Random:
        return random.Random(f"{self.experiment.seed} {self._round} {number}")


def _refuse_wrong(experiment: Experiment, config: Any) -> None:
    """Refuse settings of the search that mean nothing, and axes that a checkpoint does not take."""
    where, options = f"{experiment.path}: [search]: ", experiment.options
    factors = options["factors"]
    if experiment.trials < 2:
        raise UserError(f"{where}a population needs trials = N of at least 2, its members")
    if not 0 < options["share"] <= 0.5:
        raise UserError(f"{where}share = {options['share']}: it is above 0 and at most 0.5")
    if not 0 <= options["resample"] <= 1:
        raise UserError(f"{where}resample = {options['resample']}: it is a probability")
    if not factors or not all(is_number(factor) and factor > 0 for factor in factors):
        raise UserError(f"{where}factors = {factors}: they are numbers above 0, such as [0.8, 1.2]")
    total = config.total_environment_frames
    if options["exchange_frames"] >= total:
        raise UserError(f"{where}exchange_frames must be below total_environment_frames, {total:g}")
    known = flags.infos(config)
    for name in experiment.axes:
        if name in ("algorithm", "level_name", "total_environment_frames") or (
            known[name].kept_by or known[name].group in ("Network", "Environment")
        ):
            raise UserError(
                f"{experiment.path}: [axes]: {name} stays as it is when a member takes another's "
                f"checkpoint: give it to all of a population, or use another kind of search"
            )


def choose(
    scores: Mapping[int, float], over: set[int], share: float, draws: random.Random
) -> dict[int, int]:
    """Return which of the worst members take from which of the best; those that are over do not."""
    ranked = sorted(scores, key=lambda member: (scores[member], -member))
    count = max(1, int(len(ranked) * share))
    found = {}
    for member in ranked[:count]:
        better = [m for m in ranked[-count:] if scores[m] > scores[member]]
        if better and member not in over:
            found[member] = draws.choice(better)
    return found


def perturb(experiment: Experiment, best: Values, own: Values, draws: random.Random) -> Values:
    """Return the best one's values, each changed within its axis; a member keeps its seed."""
    options, found = experiment.options, {}
    for name, axis in experiment.axes.items():
        if name == "seed":
            found[name] = own[name]
        elif draws.random() < options["resample"]:
            found[name] = axis.draw(draws)
        else:
            found[name] = _moved(axis, best[name], draws.choice(options["factors"]), draws)
    return found


def _moved(axis: Axis, value: Any, factor: float, draws: random.Random) -> Any:
    """Return a value times a factor, within its interval; one of a list moves to a neighbour."""
    if axis.kind == "choices":
        last = len(axis.values) - 1
        return axis.values[min(max(axis.values.index(value) + draws.choice([-1, 1]), 0), last)]
    low, high = axis.values
    moved = value * factor
    if axis.kind == "integers":
        moved = round(moved)
        if moved == value:
            moved += 1 if factor > 1 else -1
    return min(max(moved, low), high)


def copy_beside(source: Path, folder: Path) -> None:
    """Copy a checkpoint, and what learners saved of their own with it, beside those in a folder.

    Raises OSError, and Damaged if the copy is not whole.
    """
    copy, run = folder / _COPY, source.parents[1]
    shutil.rmtree(copy, ignore_errors=True)
    for own in run.glob(f"own/learner-*/{source.name}"):
        shutil.copytree(own, copy / own.relative_to(run))
    shutil.copytree(source, copy / "checkpoints" / source.name)
    checkpoint.verify(copy / "checkpoints" / source.name)
    (copy / "checkpoints" / f"{TAKEN}{time.time():.0f}").touch()  # for the copy on another host


def exchange(folder: Path) -> None:
    """Put what `copy_beside` copied in the place of a folder's own; it may have been begun."""
    copy = folder / _COPY
    for name in ("own", "checkpoints"):
        if (copy / name).exists():
            with contextlib.suppress(FileNotFoundError):
                (folder / name).rename(copy / f"{name}-before")
            (copy / name).rename(folder / name)
    shutil.rmtree(copy, ignore_errors=True)


def why_not_live(
    values: Values, settings: Mapping[str, Any], row: Mapping[str, float], begun: float
) -> str:
    """Return why a restarted run does not have its new values; empty if it has.

    `settings` are those that its learner has recorded, `row` is one of its metrics since, with the
    learning rate that its optimizer had, and `begun` are the frames of its checkpoint. With a
    teacher, whose phases have rates of their own, the rate is not compared.
    """
    for name, value in values.items():
        if (live := settings.get(name)) != value and f"{live}" != setting_files.to_text(value):
            return f"{name} is {live} instead of {value}"
    if "learning_rate" not in values or settings.get("teacher"):
        return ""
    rate = row["learning_rate"]
    low, high = sorted(_scheduled(settings, frames) for frames in (begun, row["frames"]))
    if low * 0.999 <= rate <= high * 1.001:
        return ""
    return f"the learning rate in use is {rate:g}, not from {low:g} to {high:g}"


def _scheduled(settings: Mapping[str, Any], frames: float) -> float:
    """Return the learning rate after these frames, by --learning_rate_schedule."""
    rate, end = settings["learning_rate"], settings["learning_rate_end"]
    if settings["learning_rate_schedule"] == "constant":
        return float(rate)
    left = max(0.0, 1.0 - frames / settings["total_environment_frames"])
    if settings["learning_rate_schedule"] == "polynomial":
        left **= settings["learning_rate_power"]
    return float(end + (rate - end) * left)
