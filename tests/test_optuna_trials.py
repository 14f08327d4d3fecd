"""Optuna chooses for trials that are real processes, and the experiment's own one is killed."""

import pytest
from cluster import FRONTEND
from processes import Process
from supervising import until

from impala_mm.records.run_contents import read_records
from launcher.experiments.optuna_search import STUDY

SEARCH = """
total_environment_frames = 2000
level_name = "catch"
[axes]
learning_rate = {uniform = [0.1, 1.0]}
[search]
kind = "tpe"
trials = 6
at_once = 2
startup = 2
[needs]
actors = 1
"""


@pytest.mark.slow
def test_a_killed_search_loses_and_doubles_no_trial(cluster):
    """Learners are stand-ins, whose return is the learning rate times the frames."""
    optuna = pytest.importorskip("optuna")
    (cluster.folder / "search.toml").write_text(SEARCH)
    folder = cluster.folder / "search"
    rows = [f"{job},localhost,,{cluster.program}" for job in ("learner", "actor")] * 2
    command = (f"--experiment={cluster.folder}/search.toml", f"--logdir={folder}")
    command += (cluster.csv(*rows), "--skip_check")

    def start():
        return Process(*FRONTEND, *command, **cluster.environment, TOLD="trial")

    for trial in (1, 3):
        running = start()
        until(
            lambda trial=trial: (folder / "trials" / f"{trial:03d}" / "metrics.jsonl").exists(), 120
        )
        running.process.kill()
        running.wait(20)
    running = start()
    assert running.wait(300) == 0, running.printed()
    journal = read_records(folder / "experiment.jsonl")
    asked = {row["trial"]: row["values"] for row in journal if row["event"] == "asked"}
    over = [row["trial"] for row in journal if row["event"] in ("ended", "pruned")]
    assert sorted(over) == sorted(asked) == list(range(6))
    journal_of_optuna = optuna.storages.journal.JournalFileBackend(str(folder / STUDY))
    storage = optuna.storages.JournalStorage(journal_of_optuna)
    trials = optuna.load_study(study_name=None, storage=storage).trials
    assert {trial.number: trial.params for trial in trials} == asked
    assert all(trial.state.is_finished() for trial in trials)
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    assert all(t.value == pytest.approx(2000 * t.params["learning_rate"]) for t in complete)
