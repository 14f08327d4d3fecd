"""Arguments, wrappers and factories of environments in complete runs."""

import json
import os
import subprocess
import sys

import pytest
from processes import ROOT

import impala_mm
from impala_mm.records import checkpoint

FLAGS = [
    "--level_name=making:make_walk",
    '--env_kwargs={"length": 6}',
    '--env_wrappers=making:Plus,gymnasium.wrappers:TimeLimit{"max_episode_steps": 4}',
]


def _run(program, *arguments, code=0):
    ran = subprocess.run(
        [sys.executable, ROOT / program, *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/helpers'}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_run_records_them_is_told_of_others_and_is_evaluated_and_exported_with_them(tmp_path):
    logdir = tmp_path / "run"
    common = (f"--logdir={logdir}", "--num_actors=1", "--max_seconds=60", "--num_envs=4")
    _run("experiment.py", *FLAGS, *common, "--total_environment_frames=800")
    settings = json.loads((logdir / "settings.json").read_text())
    assert [f"--{name}={settings[name]}" for name in ("env_kwargs", "env_wrappers")] == FLAGS[1:]
    other = "--env_wrappers=making:Plus"
    said = _run("experiment.py", *FLAGS[:2], other, *common, "--total_environment_frames=1600")
    assert f"{other} (was making:Plus,gymnasium.wrappers:TimeLimit" in said
    _run("experiment.py", "--mode=export", f"--logdir={logdir}", f"--export_dir={tmp_path / 'x'}")
    assert json.loads((tmp_path / "x/signature.json").read_text())["env_kwargs"] == '{"length": 6}'
    policy = impala_mm.load_policy(logdir, env_kwargs={"length": 6}, env_wrappers="")
    assert policy.config.env_kwargs == '{"length": 6}'
    with pytest.raises(checkpoint.Mismatch, match=r"\[9\], but the network was made for"):
        impala_mm.load_policy(logdir, env_kwargs={"length": 9})
    assert impala_mm.evaluate(logdir, 2, env_wrappers=FLAGS[2].partition("=")[2]).lengths == [4, 4]


@pytest.mark.slow
def test_games_in_colours_and_without_lives_are_trained_on_resumed_and_played(tmp_path):
    """By the network of a replayed algorithm, which stacks what its actor and its replay hold."""
    logdir = tmp_path / "run"
    common = (
        *("--preset=atari-r2d2,atari-sticky", "--level_name=BreakoutNoFrameskip-v4"),
        *("--grayscale=false", f"--logdir={logdir}", "--num_actors=1", "--num_envs=8"),
        *("--replay=uniform:1:500", "--replay_ratio=1", "--replay_min=16", "--batch_size=4"),
    )
    _run("experiment.py", *common, "--frame_stack=2", "--total_environment_frames=8000")
    _run("experiment.py", *common, "--frame_stack=2", "--total_environment_frames=12000")
    rows = [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["frames"] >= 12000
    ended = [row for row in rows if "shaped_return" in row]
    assert ended
    assert all(row["shaped_return"] == row["episode_return"] for row in ended), "games alone end"
    settings = json.loads((logdir / "settings.json").read_text())
    assert settings["preset"] == "atari-r2d2,atari-sticky"
    assert "--frame_stack is 4 here and 2 in" in _run("experiment.py", *common, code=2)
    result = impala_mm.evaluate(logdir, 2)
    assert len(result.returns) == 2
    assert result.options["sticky_actions"] == 0.25
    said = _run("experiment.py", "--mode=test", f"--logdir={logdir}", "--frame_stack=3", code=2)
    assert "which was made for 2 frames: give --frame_stack=2" in said
