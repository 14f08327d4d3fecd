"""An algorithm of the user's, in a folder outside of the project, with the documented commands."""

import functools
import json
import os
import subprocess
import sys

import pytest
from cluster import FRONTEND
from processes import ROOT, free_port, needs_horovod
from processes import run as run_in

SETTINGS = """
import dataclasses
from impala_mm.config import flags
from impala_mm.config.settings import Config

@dataclasses.dataclass(frozen=True)
class Settings(Config):
    unroll_length: int = flags.default(Config, "unroll_length", 5)
    passes: int = flags.flag(4, "Passes over each batch.", group="Mine", least=1)
"""
MODULE = """
from impala_mm.algorithms.impala.algorithm import Impala

def make(config, environment, setup):
    made = Impala(config, environment, setup)
    print(f"made for {setup.role.value} with passes={config.passes}: {made.unroll.length} steps, "
          f"{len(made.variables.carried)} carried", flush=True)
    return made
"""
PROGRAM = (sys.executable, ROOT / "experiment.py", "--algorithm=my.mine")


@pytest.fixture
def here(tmp_path):
    """The user's folder, with their package; it is the current folder of what they start."""
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "mine.py").write_text(MODULE)
    (tmp_path / "my" / "mine_settings.py").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def run(here):
    """Return a function that runs a command in the user's folder."""
    return functools.partial(run_in, cwd=here)


def _logs(folder):
    return "".join(path.read_text() for path in folder.glob("*.log"))


def _check_run(folder, code, printed):
    assert code == 0, printed
    said = printed + _logs(folder)
    assert "made for actor with passes=6: 5 steps, 0 carried" in said
    assert "made for learner with passes=6: 5 steps, " in said
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["passes"], settings["unroll_length"]) == (6, 5)
    start = json.loads((folder / "starts.jsonl").read_text().splitlines()[-1])
    assert (folder / start["source"] / "my" / "mine.py").read_text() == MODULE
    assert "the source of your modules is kept in " in said


@pytest.mark.slow
def test_one_learner_trains_and_is_tested_and_resumed_by_its_recorded_algorithm_alone(here, run):
    common = (f"--logdir={here / 'run'}", "--num_actors=1")
    train = (*PROGRAM, *common, f"--learner_hosts=127.0.0.1:{free_port()}")
    _check_run(here / "run", *run(*train, "--passes=6", "--total_environment_frames=1000"))
    code, printed = run(*train[:2], f"--logdir={here / 'run'}", "--mode=test")
    assert code == 0, printed
    assert "made for evaluator with passes=6: 5 steps, 0 carried" in printed
    code, printed = run(*train[:2], "--num_actors=1", f"--logdir={here / 'run'}")
    assert code == 2
    assert "--algorithm is impala here and my.mine in" in printed + _logs(here / "run")
    (here / "my").rename(here / "gone")
    code, printed = run(*train[:2], f"--logdir={here / 'run'}", "--mode=test")
    assert code == 2
    assert "error: the run's --algorithm=my.mine: there is no such algorithm" in printed


@pytest.mark.slow
@needs_horovod
def test_the_frontend_passes_own_flags_on_to_two_learners_of_a_csv(here, run, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    (here / "workers.csv").write_text(
        f"job,ip,tf_port\nlearner,localhost,{free_port()}\nlearner,localhost,{free_port()}\n"
        "actor,localhost,\nactor,localhost,\n"
    )
    flags = (*("--algorithm=my.mine", "--passes=6", "--total_environment_frames=1000"),)
    session = f"own-{os.getpid()}"
    ran = run(
        *(*FRONTEND, "--workers_csv_path=workers.csv", f"--tmux_sess={session}", *flags),
        f"--logdir={here / 'run'}",
    )
    subprocess.run(["tmux", "kill-session", "-t", session], check=False, timeout=20)
    _check_run(here / "run", *ran)
