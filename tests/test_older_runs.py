"""A run's folder from an earlier version can be resumed, tested, exported and plotted.

`older_runs/` contains such folders, each named after its level and the commit that wrote it with
`experiment.py --level_name=catch --total_environment_frames=250000 --keep_checkpoints=1`. They are
never regenerated: this test shows what a change of the folder's format breaks for users.
"""

import re
import shutil
import sys

import pytest
from processes import EXPERIMENT, ROOT, free_port, run
from rows import read_rows

FOLDERS = sorted((ROOT / "tests" / "older_runs").iterdir())


@pytest.fixture(params=FOLDERS, ids=[folder.name for folder in FOLDERS])
def older(request, tmp_path):
    return shutil.copytree(request.param, tmp_path / "run")


def test_it_is_resumed_by_the_same_command(older):
    before = read_rows(older)[-1]
    code, printed = run(
        *(*EXPERIMENT, "--level_name=catch", f"--logdir={older}", "--keep_checkpoints=1"),
        *("--total_environment_frames=256000", f"--learner_hosts=127.0.0.1:{free_port()}"),
        "--num_actors=1",
    )
    assert code == 0, printed
    assert f"resumed at 250,128 frames, update {before['updates']}" in printed
    rows = read_rows(older)
    assert rows[-1]["frames"] >= 256_000
    assert rows[-1]["updates"] > before["updates"]
    assert rows[-1]["seconds"] > before["seconds"]
    assert rows[-1]["episode_return"] > 0.8, "it plays as well as before"
    since = [row for row in rows if row["updates"] > before["updates"]]
    assert before.keys() <= set().union(*since), "no key of a row is gone"
    assert "--reward_clipping=abs_one, which this run has recorded" in printed
    starts = read_rows(older, "starts.jsonl")
    assert [start["settings"]["reward_clipping"] for start in starts] == ["abs_one", "abs_one"]


@pytest.mark.slow
def test_it_is_tested(older):
    code, printed = run(*EXPERIMENT, "--mode=test", f"--logdir={older}", "--test_num_episodes=50")
    assert code == 0, printed
    assert float(re.search(r"^return +(\S+)", printed, re.MULTILINE)[1]) > 0.8, printed
    before, now = read_rows(older, "evaluations.jsonl")
    assert before.keys() == now.keys()
    assert now["frames"] == 250_128


@pytest.mark.slow
def test_it_is_exported_and_the_export_plays(older):
    code, printed = run(*EXPERIMENT, "--mode=export", f"--logdir={older}")
    assert code == 0, printed
    code, printed = run(sys.executable, "example.py", cwd=older / "export")
    assert code == 0, printed


@pytest.mark.slow
def test_it_is_plotted_and_reported(older):
    code, printed = run(sys.executable, "sandbox/results", "plot", older)
    assert code == 0, printed
    assert (older / "curves.png").stat().st_size > 10_000
    code, printed = run(sys.executable, "sandbox/results", "report", older)
    assert code == 0, printed
    assert "250,128" in (older / "report.html").read_text()


def _train(folder, frames, *flags, **expected):
    """Train to this many frames with these settings; return what is printed."""
    code, printed = run(
        *(*EXPERIMENT, "--level_name=Pendulum-v1", f"--logdir={folder}", "--num_actors=1"),
        *(f"--total_environment_frames={frames}", *flags, "--learner_hosts=127.0.0.1:0"),
    )
    assert code == 0, printed
    settings = read_rows(folder, "starts.jsonl")[-1]["settings"]
    assert expected.items() <= settings.items()
    return printed


@pytest.mark.slow
def test_a_run_with_numbers_as_actions_keeps_the_defaults_of_the_version_that_began_it(tmp_path):
    """The actors, which get no flags but those of the command, ask their learner."""
    former = {"box_policy": "clipped", "normalize_observations": False, "entropy_cost": 0.005}
    now = {"box_policy": "normal", "normalize_observations": True, "entropy_cost": 0.0}
    old = ("--box_policy=clipped", "--nonormalize_observations", "--nonormalize_rewards")
    old += ("--noseparate_networks", "--entropy_cost=0.005")
    _train(tmp_path / "old", 2000, *old, **former)
    printed = _train(tmp_path / "old", 4000, **former)
    (line,) = [line for line in printed.splitlines() if "which this run has recorded" in line]
    assert "--box_policy=clipped" in line
    assert "--normalize_observations=false" in line
    assert "resumed at 2," in printed
    printed = _train(tmp_path / "new", 2000, **now)
    (line,) = [line for line in printed.splitlines() if "actions are numbers (Box): " in line]
    assert "--box_policy=normal" in line
    from_old = ("--mode=train_from", f"--checkpoint={tmp_path / 'old'}")
    _train(tmp_path / "from_old", 2000, *from_old, **former)
