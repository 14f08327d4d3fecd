"""An experiment that is resumed from its journal: what is over, what is queued, what may change."""

import dataclasses

import pytest

from launcher.experiments.file import Axis, Experiment
from launcher.experiments.journal import Journal
from launcher.experiments.search import Grid
from launcher.experiments.trial import Trial
from launcher.plan.request import UserError

AXES = {"seed": Axis("choices", [1, 2]), "learning_rate": Axis("choices", [0.1, 0.2])}


def make(folder, axes=AXES, **base):
    return Experiment("sweep.toml", folder, base, axes, "grid")


def test_the_same_command_finds_every_trial_as_it_was(tmp_path):
    experiment = make(tmp_path, batch_size=4)
    journal, search = Journal(tmp_path), Grid(experiment, {})
    journal.write("begun", experiment=experiment.fixed)
    trials = [Trial(experiment, n, search.ask(n)) for n in range(4)]
    for trial in trials:
        journal.write("asked", trial=trial.number, values=trial.values)
        journal.write_trial("started", trial, host="localhost", frontend=[1, 2])
    for trial, event in zip(trials, ("ended", "lost", "failed"), strict=False):
        trial.score = 7.0
        journal.write_trial(event, trial)
    again = Journal(tmp_path)
    again.refuse_changes(experiment)
    found = again.trials(experiment)
    assert [t.state for t in found] == ["ended", "queued", "queued", "starting"]
    assert [t.values for t in found] == [t.values for t in trials]
    assert (found[0].score, found[3].frontend) == (7.0, (1, 2))
    assert Grid(experiment, again.asked).ask(4) is None
    more = make(tmp_path, {**AXES, "seed": Axis("choices", [1, 2, 3])}, batch_size=4)
    again.refuse_changes(more)
    search = Grid(more, again.asked)
    assert [search.ask(n) for n in (4, 5)] == [
        {"seed": 3, "learning_rate": rate} for rate in (0.1, 0.2)
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"base": {"batch_size": 8}}, "batch_size is 8 and was 4"),
        ({"base": {}}, "batch_size is unset and was 4"),
        ({"axes": AXES | {"seed": Axis("choices", [2, 3])}}, "axes.seed lacks 1"),
        (
            {"axes": AXES | {"seed": Axis("integers", [1, 3])}},
            "axes.seed is .* and was .*choices",
        ),
        ({"axes": {"seed": AXES["seed"]}}, "axes.learning_rate is unset"),
        ({"kind": "random"}, 'search.kind is "random" and was "grid"'),
    ],
)
def test_another_experiment_in_the_same_folder_is_refused(tmp_path, changes, what):
    experiment = make(tmp_path, batch_size=4)
    journal = Journal(tmp_path)
    journal.write("begun", experiment=experiment.fixed)
    with pytest.raises(UserError, match=what):
        journal.refuse_changes(dataclasses.replace(experiment, **changes))
