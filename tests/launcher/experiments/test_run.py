"""Experiments as their command runs them: what is started, and what is refused before a start."""

import os
import re
import signal
import time
from pathlib import Path

from launcher.experiments.journal import Journal
from launcher.supervise.run_registry import Record, Run, boot_id

_PAGE = Path(__file__).parents[3] / "sandbox" / "sweeps.md"
_ONE = "total_environment_frames = 200\n[axes]\nseed = [1]\n[needs]\nactors = 0\n"


def test_the_population_of_the_page_has_room_on_two_cores(cluster, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    files = re.findall(r"```toml\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    (population,) = [text for text in files if '"population"' in text]
    (cluster.folder / "population.toml").write_text(population)
    code, printed = cluster.ask("--experiment=population.toml", "--dry_run")
    assert code == 0, printed
    assert re.findall(r"# trial (\d): .*: on localhost", printed) == ["0", "1", "2", "3"]


def test_another_folder_s_run_of_the_same_name_is_left_alone(cluster):
    (cluster.folder / "sweep.toml").write_text(_ONE)
    other = Run("sweep-000", cluster.state.parent)
    other.folder.mkdir(parents=True)
    rest = (time.time(), boot_id(), "/of/another", "", [], {}, [], 0)
    other.write_record(Record("sweep-000", "1", *rest))
    flags = ("--experiment=sweep.toml", cluster.rows(0), "--skip_check")
    code, printed = cluster.run(*flags, TOLD="trial")
    assert code == 1, printed
    assert "trial 0 failed after 0 frames: error: the run sweep-000 has ended, and its" in printed
    assert other.record


def test_what_an_experiment_cannot_do_is_one_sentence(cluster):
    sweep = cluster.folder / "sweep.toml"
    sweep.write_text(_ONE)
    flags = ("--experiment=sweep.toml", "--dry_run", "--lost_secs=10")
    assert "without effect" not in cluster.ask(*flags)[1]
    for flag in ("--check", "--detach", "--tmux_sess=mine"):
        code, printed = cluster.ask(flags[0], flag)
        assert code == 2
        assert f"{flag.partition('=')[0]} is about one run, and not for --experiment: " in printed
    (cluster.folder / "starts.jsonl").touch()
    code, printed = cluster.ask(*flags, f"--logdir={cluster.folder}")
    assert code == 2
    assert "is the folder of a run: give another one" in printed
    sweep.write_text(_ONE.replace("[1]", "{integers = [1, 9]}"))
    code, printed = cluster.ask(*flags)
    assert code == 2
    assert "random needs trials = N" in printed


def test_a_trial_of_another_machine_is_not_followed(cluster, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (cluster.folder / "sweep.toml").write_text(_ONE)
    folder = cluster.folder / "runs" / "sweep"
    folder.mkdir(parents=True)
    journal = Journal(folder)
    journal.write("asked", trial=0, values={"seed": 1})
    journal.write("started", trial=0, values={"seed": 1}, frontend=[1, 2])
    run = Run("sweep-000", cluster.state.parent)
    run.folder.mkdir(parents=True)
    rest = (time.time(), "boot", str(folder / "trials" / "000"), "", [], {}, [], 0)
    run.write_record(Record("sweep-000", "1", *rest, started_from="machine2"))
    code, printed = cluster.ask("--experiment=sweep.toml")
    assert code == 2
    assert "sweep-000 was started on machine2, where it may be running: --stop it" in printed
