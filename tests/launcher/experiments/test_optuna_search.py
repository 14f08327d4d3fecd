"""The search by Optuna: its study survives kills, prunes at equal frames, finds good values."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.experiments.file import Axis, Experiment
from launcher.experiments.optuna_search import STUDY, TPE
from launcher.experiments.search import CONTINUE, PRUNE
from launcher.plan.request import UserError

AXES = {
    "learning_rate": Axis("log_uniform", [1e-5, 1e-1]),
    "discounting": Axis("uniform", [0.5, 1.0]),
    "epochs": Axis("integers", [1, 8]),
    "mlp_sizes": Axis("choices", [[64, 64], [256]]),
}


def _experiment(folder: Path, **options) -> Experiment:
    base = {"total_environment_frames": 1000.0, "algorithm": "ppo"}
    options = {**TPE.OPTIONS, **options}
    return Experiment("s.toml", folder, base, AXES, "tpe", trials=30, options=options)


def test_without_optuna_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'impala_mm\[optuna\]'"):
        TPE(_experiment(tmp_path), {})


def test_a_pruner_that_never_comes_to_prune_is_refused(tmp_path):
    with pytest.raises(UserError, match="warmup = 10: it must be below reports, which are 10"):
        TPE(_experiment(tmp_path, warmup=10), {})


def test_without_a_number_of_frames_it_is_refused(tmp_path):
    for frames in (0.0, float("inf")):  # the default is 0
        base = {"total_environment_frames": frames}
        experiment = dataclasses.replace(_experiment(tmp_path), base=base)
        with pytest.raises(UserError, match="give it, such as total_environment_frames = 1e6"):
            TPE(experiment, {})


def test_a_trial_of_a_killed_process_keeps_its_values(tmp_path):
    optuna = pytest.importorskip("optuna")
    first = TPE(_experiment(tmp_path), {})
    asked = [first.ask(number) for number in range(3)]
    first.tell(0, 500.0, 3.0)
    journal = tmp_path / STUDY
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"wor')  # killed while it wrote the next one
    os.symlink(journal, f"{journal}.lock")
    again = TPE(_experiment(tmp_path), {0: asked[0], 1: asked[1]})
    began = time.monotonic()
    assert [again.ask(number) for number in range(3)] == asked
    assert time.monotonic() - began < 10  # the lock of the killed process is not waited for
    assert again.ask(3) not in asked
    again.tell(0, 600.0, 4.0)
    again.ended(0, 5.0, "ended")
    again.ended(0, 5.0, "ended")  # killed before it was written that it ended
    again.ended(1, None, "failed")
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(journal))
    )
    study = optuna.load_study(study_name=None, storage=storage)  # as optuna-dashboard does
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", *["RUNNING"] * 2]
    assert study.trials[0].value == 5.0
    found = study.trials[0].intermediate_values
    assert found == {100: 3.0, 200: 3.0, 300: 3.0, 400: 3.0, 500: 3.0, 600: 4.0}


@pytest.mark.parametrize("pruner", ["median", "halving", "none"])
def test_trials_that_fall_behind_are_pruned_at_equal_frames(tmp_path, pruner):
    pytest.importorskip("optuna")
    search = TPE(_experiment(tmp_path, pruner=pruner, startup=4), {})
    for number in range(5):
        search.ask(number)
    for number in range(4):  # each is as good as its frames; the pruner waits for four to end
        answers = {search.tell(number, frames, frames) for frames in range(0, 1001, 50)}
        search.ended(number, 1000.0, "ended")
        assert PRUNE not in answers or pruner == "halving"
    assert search.tell(4, 200.0, 1.0) == CONTINUE  # the first two reports prune none
    # Better than the others were at its own frames, though worse than they are now.
    assert search.tell(4, 300.0, 350.0) == CONTINUE
    assert search.tell(4, 600.0, 20.0) == (CONTINUE if pruner == "none" else PRUNE)
    again = TPE(_experiment(tmp_path, pruner=pruner, startup=4), {})
    assert again.tell(4, 620.0, 20.0) == (CONTINUE if pruner == "none" else PRUNE)
    again.ended(4, 20.0, "pruned")


def test_it_finds_good_values_sooner_than_random_draws(tmp_path):
    pytest.importorskip("optuna")

    def score(values) -> float:
        return -abs(values["epochs"] - 6) - 20 * abs(values["discounting"] - 0.93)

    def best(search: TPE) -> float:
        found = []
        for number in range(30):
            found.append(score(search.ask(number)))
            search.ended(number, found[-1], "ended")
        return sum(sorted(found)[-10:])

    experiment = _experiment(tmp_path)
    drawn = [score(experiment.draw(number)) for number in range(30)]
    assert best(TPE(experiment, {})) > sum(sorted(drawn)[-10:])


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_loses_and_doubles_no_trial(tmp_path):
    optuna = pytest.importorskip("optuna")
    log, source = tmp_path / "log", random.Random(1)
    script = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_optuna_search import TPE, _experiment
log = Path({str(log)!r})
rows = [json.loads(x) for x in log.read_text().splitlines()] if log.exists() else []
search = TPE(_experiment(Path({str(tmp_path)!r})), dict(rows))
print("ready", flush=True)
for number in range(len(rows), 30):
    values = search.ask(number)
    search.tell(number, 500.0, 1.0)
    search.ended(number, 1.0, "ended")
    with log.open("a") as file:
        file.write(json.dumps([number, values]) + "\\n")
"""
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(source.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if log.exists() and len(log.read_text().splitlines()) == 30:
            break
    subprocess.run([sys.executable, "-c", script], check=True)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [number for number, _ in rows] == list(range(30))
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / STUDY))
    )
    trials = optuna.load_study(study_name=None, storage=storage).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 30
    assert [t.params["learning_rate"] for t in trials] == [v["learning_rate"] for _, v in rows]
