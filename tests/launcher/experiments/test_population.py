"""A population: who takes from whom, with which values, and that nothing is ever half exchanged."""

import dataclasses
import json
import random
import shutil
import sys
from pathlib import Path

import pytest

from impala_mm.records import checkpoint
from impala_mm.records.run_contents import POPULATION
from launcher.experiments import population
from launcher.experiments.file import Axis, Experiment
from launcher.experiments.population import Population, choose, perturb, why_not_live
from launcher.experiments.search import CONTINUE, PAUSE
from launcher.plan.request import UserError

RATES = {"learning_rate": Axis("log_uniform", [1e-5, 1e-2])}
OPTIONS = dict(Population.OPTIONS)


def _experiment(folder: Path, axes=RATES, trials=4, **options) -> Experiment:
    base = {"total_environment_frames": 1000.0, "algorithm": "ppo"}
    return Experiment("p.toml", folder, base, axes, "population", trials, options=OPTIONS | options)


class Members:
    """Runs that write what ordinary runs write, and that the search pauses and starts."""

    def __init__(self, experiment: Experiment):
        self.experiment, self.folder = experiment, experiment.folder
        self.frames = dict.fromkeys(range(experiment.trials), 0)
        self.values: dict[int, dict] = {}
        self.touched: list[tuple[str, int]] = []  # what was done to whom
        self.overwrites_rate = False  # as if the checkpoint's learning rate won
        self.begin()

    def begin(self) -> None:
        """Begin the search anew, as the same command does."""
        self.search = Population(self.experiment, self.values)

    def run_folder(self, member: int) -> Path:
        return self.folder / "trials" / f"{member:03d}"

    def start(self, member: int) -> None:
        asked = self.search.ask(member) if member not in self.values else self.values[member]
        self.values[member] = self.search.starts(member, asked)
        self.touched.append(("start", member))
        folder = self.run_folder(member)
        folder.mkdir(parents=True, exist_ok=True)
        newest = checkpoint.all_in(folder / "checkpoints")[-1:]
        self.frames[member] = int(checkpoint.read(newest[0]).frames) if newest else 0
        rate = {"learning_rate_schedule": "constant", "learning_rate_end": 0.0}
        settings = {"total_environment_frames": 1000.0, **rate, **self.values[member]}
        (folder / "settings.json").write_text(json.dumps(settings))

    def save(self, member: int) -> None:
        work, folder = self.folder / f"saving-{member}", self.run_folder(member) / "checkpoints"
        shutil.rmtree(work, ignore_errors=True)
        final = folder / f"{self.frames[member]:010d}"
        if final.exists():
            return
        folder.mkdir(exist_ok=True)
        work.mkdir()
        (work / "variables.data").write_text(f"weights of {member} at {self.frames[member]}")
        about = checkpoint.CheckpointInfo(1, {}, {}, {}, frames=self.frames[member])
        checkpoint.finish(work, final, about._asdict())

    def step(self, member: int, score: float) -> str:
        """Train for 30 frames, and return the search's answer; a member that is paused starts."""
        self.frames[member] += 30
        rate = 1.0 if self.overwrites_rate else self.values[member]["learning_rate"]
        row = {"frames": self.frames[member], "episode_return": score, "learning_rate": rate}
        with (self.run_folder(member) / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if (request := self.run_folder(member) / "save-now").exists():
            request.unlink()
            self.save(member)
        answer = self.search.tell(member, self.frames[member], score)
        if answer == PAUSE:
            self.touched.append(("pause", member))
            self.save(member)  # as a run does that is stopped
            self.start(member)
        return answer

    def rows(self, event: str) -> list[dict]:
        path = self.folder / POPULATION
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if row["event"] == event]


@pytest.fixture
def members(tmp_path):
    made = Members(_experiment(tmp_path))
    for member in range(4):
        made.start(member)
    made.touched.clear()
    return made


def _play(members: Members, steps: int) -> None:
    """Let all members train side by side; member 1 is the best and member 2 the worst."""
    for _ in range(steps):
        for member, score in ((0, 5.0), (1, 9.0), (2, 1.0), (3, 6.0)):
            members.step(member, score)


def test_the_worst_member_goes_on_from_the_best_with_other_values(members):
    before = dict(members.values)
    _play(members, 7)
    assert members.touched == [("pause", 2), ("start", 2)]  # the rest were not even stopped
    compared, took, confirmed = (members.rows(e)[0] for e in ("compared", "took", "confirmed"))
    assert compared["scores"] == {"0": 5.0, "1": 9.0, "2": 1.0, "3": 6.0}
    assert compared["takes"] == {"2": 1}
    assert compared["frames"] == 100
    assert (took["member"], took["from"], took["before"]) == (2, 1, before[2])
    assert took["frames"] >= 100  # equal frames: not of before the comparison
    assert (
        confirmed["learning_rate"]
        == members.values[2]["learning_rate"]
        == took["values"]["learning_rate"]
    )
    taken = members.run_folder(2) / "checkpoints" / took["checkpoint"]
    assert (taken / "variables.data").read_text() == f"weights of 1 at {took['frames']}"
    checkpoint.verify(taken)
    assert [path.name for path in checkpoint.all_in(taken.parent)] == [took["checkpoint"]]
    assert {m for m in before if members.values[m] != before[m]} == {2}
    rows = (members.run_folder(2) / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 7  # appended to, never cut


def test_a_return_of_before_the_exchange_counts_in_no_later_comparison(members):
    for _ in range(4):
        members.step(2, 1.0)  # it is ahead, and beyond the second comparison's frames
    for _ in range(3):
        members.step(2, 1.0)
    for _ in range(4):
        for member in (0, 1, 3):
            members.step(member, 5.0 + member)
    members.step(2, 1.0)  # is told to take
    assert members.touched == []  # no checkpoint yet: the source is asked for one
    members.step(3, 8.0)
    members.step(2, 1.0)
    assert members.touched == [("pause", 2), ("start", 2)]
    assert members.frames[2] == members.frames[3]
    assert 2 not in members.search._scores


def test_rows_of_before_an_exchange_are_those_of_all_exchanges(members):
    _play(members, 24)  # member 2 stays the worst
    took = [row for row in members.rows("took") if row["member"] == 2]
    assert len(took) > 2
    path = members.run_folder(2) / "metrics.jsonl"
    frames = [json.loads(line)["frames"] for line in path.read_text().splitlines()]
    for row in took:
        assert frames[row["row"]] == row["frames"] + 30, "the first row after the exchange"


def test_an_exchange_whose_values_are_not_in_use_is_reported(members, capsys, monkeypatch):
    monkeypatch.setattr(population, "_PATIENCE", -1.0)
    members.overwrites_rate = True
    _play(members, 7)
    (row,) = members.rows("not confirmed")
    assert "the learning rate in use is 1" in row["why"]
    assert "trial 2 does not have its new values" in capsys.readouterr().out


class Killed(BaseException):
    """A process's end."""


@pytest.mark.parametrize("at", range(9))  # the writes, copies, removals and renames of an exchange
def test_a_kill_at_any_moment_of_an_exchange_leaves_nothing_half_done(members, monkeypatch, at):
    made = 0

    def dying(function):
        def call(*args, **kwargs):
            nonlocal made
            if sys._getframe(1).f_code.co_filename == population.__file__:
                made += 1
                if made > at:
                    raise Killed
            return function(*args, **kwargs)

        return call

    _play(members, 3)
    calls = (Path, "rename"), (shutil, "rmtree"), (shutil, "copytree"), (json, "dumps")
    with monkeypatch.context() as patched:
        for owner, name in calls:
            patched.setattr(owner, name, dying(getattr(owner, name)))
        with pytest.raises(Killed):
            _play(members, 4)
    members.begin()
    # The member that was stopped is started; all others are running.
    if members.touched[-1:] == [("pause", 2)]:
        members.start(2)
    _play(members, 4)
    took = members.rows("took")[0]
    assert (took["member"], took["from"], took["round"]) == (2, 1, 1)
    assert members.rows("confirmed")[0]["values"] == took["values"]
    assert [row["round"] for row in members.rows("took")] in ([1], [1, 2])
    assert members.values[2] == members.rows("took")[-1]["values"]
    assert not list(members.folder.glob(f"trials/*/{population._COPY}*"))
    (taken,) = checkpoint.all_in(members.run_folder(2) / "checkpoints")
    checkpoint.verify(taken)
    assert (taken / "variables.data").read_text().startswith("weights of 1 at ")


def test_a_member_that_failed_takes_from_the_best_once_in_a_round(members):
    for _ in range(2):
        for member in range(4):
            members.step(member, float(member))
    assert not members.search.ended(0, 0.0, "failed")  # nobody has a checkpoint
    members.save(2)
    assert members.search.ended(0, 0.0, "failed")
    members.start(0)
    assert members.rows("took")[0]["from"] == 2
    assert members.frames[0] == members.frames[2]
    assert not members.search.ended(0, 0.0, "failed")


def test_members_that_have_ended_give_and_take_no_more(members):
    for _ in range(3):
        members.step(1, 9.0)
    members.search.ended(1, 9.0, "ended")  # such as by --stop_at_return
    for _ in range(6):
        for member in (0, 2, 3):
            members.step(member, float(member))
    assert members.rows("compared")[0]["scores"]["1"] == 9.0
    assert members.rows("skipped")
    assert not members.rows("took")


def test_values_stay_in_their_ranges(tmp_path):
    axes = {
        "learning_rate": Axis("log_uniform", [1e-5, 1e-2]),
        "discounting": Axis("uniform", [0.9, 0.999]),
        "epochs": Axis("integers", [1, 8]),
        "batch_size": Axis("choices", [8, 16, 32]),
        "seed": Axis("choices", [1, 2]),
    }
    experiment = _experiment(tmp_path, axes, resample=0.0, factors=[0.5, 2.0])
    best = {"learning_rate": 9e-3, "discounting": 0.95, "epochs": 1, "batch_size": 16, "seed": 1}
    sources = [random.Random(seed) for seed in range(100)]
    found = [perturb(experiment, best, best | {"seed": 2}, source) for source in sources]
    assert {each["learning_rate"] for each in found} == {9e-3 * 0.5, 1e-2}
    assert {each["discounting"] for each in found} == {0.9, 0.999}
    assert {each["epochs"] for each in found} == {1, 2}
    assert {each["batch_size"] for each in found} == {8, 32}
    assert {each["seed"] for each in found} == {2}
    drawn = dataclasses.replace(experiment, options=OPTIONS | {"resample": 1.0})
    rates = {perturb(drawn, best, best, source)["learning_rate"] for source in sources}
    assert len(rates) == 100
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)


def test_as_many_of_the_worst_take_as_there_are_best():
    scores = {0: 3.0, 1: 1.0, 2: 8.0, 3: 2.0, 4: 7.0, 5: 5.0, 6: 4.0, 7: 6.0}
    for seed in range(20):
        takes = choose(scores, set(), 0.25, random.Random(seed))
        assert set(takes) == {1, 3}
        assert set(takes.values()) <= {2, 4}
    assert choose({0: 1.0, 1: 1.0}, set(), 0.5, random.Random(0)) == {}  # none is better
    assert choose(scores, {1}, 0.25, random.Random(0)).keys() == {3}


def test_the_live_learning_rate_is_compared_with_its_schedule():
    settings = {
        "learning_rate": 1e-3, "learning_rate_end": 1e-4, "learning_rate_schedule": "polynomial",
        "learning_rate_power": 2.0, "total_environment_frames": 1000.0,
    }  # fmt: skip
    values = {"learning_rate": 1e-3}
    for used, good in ((1e-4 + 9e-4 * 0.5**2, True), (1e-4 + 9e-4 * 0.45**2, True), (1e-3, False)):
        row = {"frames": 600, "learning_rate": used}
        assert (not why_not_live(values, settings, row, begun=500.0)) == good
    why = why_not_live({"learning_rate": 2e-3}, settings, row, 0.0)
    assert why == "learning_rate is 0.001 instead of 0.002"
    assert not why_not_live({"mlp_sizes": [64, 64]}, {"mlp_sizes": "64,64"}, row, 0.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trials": 1}, "at least 2"),
        ({"share": 0.7}, "share = 0.7"),
        ({"factors": [0.0]}, "factors"),
        ({"resample": 2.0}, "resample"),
        ({"exchange_frames": 1e9}, "must be below total_environment_frames"),
        ({"axes": {"mlp_sizes": Axis("choices", ["64", "32"])}}, "mlp_sizes stays as it is"),
    ],
)
def test_what_no_population_can_have_is_refused(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        Population(_experiment(tmp_path, **change), {})


def test_answers_continue_where_nothing_is_to_do(members):
    assert members.step(0, 1.0) == CONTINUE
