"""--mode=record in real processes: what is written, refused, added to, and kept on Ctrl-C."""

import json

import pytest
from processes import EXPERIMENT, Process, run
from recorded_catch import terminations

RECORD = (*EXPERIMENT, "--mode=record", "--policy=cartpole")


@pytest.mark.slow
def test_games_are_recorded_and_added_to_and_ctrl_c_keeps_those_that_are_complete(tmp_path):
    folder = tmp_path / "games"
    code, printed = run(*RECORD, "--episodes=3", f"--record_dir={folder}")
    assert code == 0, printed
    assert f"{folder} has 3 complete games" in printed
    assert json.loads((folder / "data.json").read_text())["episodes"] == 3
    process = Process(*RECORD, "--episodes=9999", f"--record_dir={folder}")
    process.until(r"[1-9]\d* of 9,?999 games", 60)
    process.interrupt()
    assert f"interrupted: {folder} has " in process.printed()
    about = json.loads((folder / "data.json").read_text())
    assert about["episodes"] > 3
    assert about["mean_return"] == pytest.approx(500, abs=10)


@pytest.mark.slow
def test_lost_lives_end_episodes_in_recorded_games_as_they_do_in_training(tmp_path):
    pytest.importorskip("ale_py")
    code, printed = run(
        *(*EXPERIMENT, "--mode=record", "--policy=breakout", "--episodes=1", "--num_envs=1"),
        f"--record_dir={tmp_path / 'games'}",
    )
    assert code == 0, printed
    assert terminations(tmp_path / "games") > 1


@pytest.mark.slow  # test_data_set refuses such folders
def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    code, printed = run(*RECORD, f"--record_dir={tmp_path}")
    assert code == 2
    assert f"error: --record_dir: {tmp_path} is not empty, and no data set lies there" in printed
