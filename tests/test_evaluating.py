"""Tests of --mode=test and --job_name=evaluator as users start them."""

import shutil
import signal
import sys

import pytest
from processes import EXPERIMENT, ROOT, Process, run
from rows import read_rows
from saved_run import evaluations, save


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    """Write a run with a checkpoint."""
    path = tmp_path_factory.mktemp("catch")
    save(path, frames=12_345.0, level_name="catch")
    return path


def test_a_run_is_tested_and_the_games_are_written_down(catch):
    code, printed = run(*EXPERIMENT, "--mode=test", f"--logdir={catch}", "--test_num_episodes=12")
    assert code == 0, printed
    row = evaluations(catch)[-1]
    assert (row["by"], row["level"], row["seed"], row["num_envs"]) == ("test", "catch", 1, 12)
    assert len(row["returns"]) == 12
    assert row["mean"] == pytest.approx(sum(row["returns"]) / 12)
    said, names, returns, lengths, how, where = printed.splitlines()
    assert "12,345 frames" in said
    assert names.split() == ["catch", "mean", "median", "deviation", "least", "most"]
    assert returns.split()[:2] == ["return", f"{row['mean']:.2f}"]
    assert lengths.split()[-5:] == ["9.00", "9.00", "0.00", "9.00", "9.00"]
    assert "complete games: 12, 12 at a time; actions sampled from the policy; seed 1;" in how
    assert where == f"[test] recorded in {catch}/evaluations.jsonl"


@pytest.mark.slow  # the signals of a process are tested by a learner, too
def test_ctrl_c_says_what_was_played_so_far(catch):
    before = read_rows(catch, "evaluations.jsonl")
    process = Process(
        *EXPERIMENT, "--mode=test", f"--logdir={catch}", "--test_num_episodes=10000000"
    )
    process.until(r"catch: (?!0)\d+ of 10000000 games, [\d,]+ steps, [\d,]+/s")
    process.process.send_signal(signal.SIGINT)
    said = r"interrupted after \d+ of 10000000 games of catch, with a mean return of -?\d"
    process.until(said)
    assert process.wait(30) == 130
    assert "Traceback" not in process.printed()
    assert read_rows(catch, "evaluations.jsonl") == before


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--mode=test plays with a run's trained policy: give the run's --logdir"),
        (["--logdir={catch}", "--render"], "--render: this machine has no display"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_a_sentence(catch, flags, sentence):
    given = [flag.format(catch=catch) for flag in flags]
    code, printed = run(
        *EXPERIMENT, "--mode=test", *given, DISPLAY="", WAYLAND_DISPLAY="", SDL_VIDEODRIVER=""
    )
    (line,) = printed.splitlines()  # no stack trace for a user's mistake
    assert code == 2
    assert line.startswith("error: ")
    assert sentence in line


@pytest.mark.slow
def test_a_video_of_a_folder_elsewhere_is_in_the_report_of_the_run(catch, tmp_path):
    logdir = shutil.copytree(catch, tmp_path / "run")
    flags = [f"--logdir={logdir}", "--video_dir=videos", "--test_num_episodes=2"]
    code, printed = run(*EXPERIMENT, "--mode=test", *flags, cwd=tmp_path)
    assert code == 0, printed
    assert evaluations(logdir)[-1]["video"] == str(tmp_path / "videos" / "catch-12345.mp4")
    (logdir / "metrics.jsonl").write_text('{"frames": 1.0, "seconds": 1.0}\n')
    code, printed = run(sys.executable, ROOT / "sandbox" / "results", "report", logdir)
    assert code == 0, printed
    assert '<video controls preload="metadata" src="data:' in (logdir / "report.html").read_text()


@pytest.mark.slow
def test_a_checkpoint_copied_elsewhere_is_tested_with_its_video_and_recorded_nowhere(
    catch, tmp_path
):
    newest = next((catch / "checkpoints").iterdir())
    copy = shutil.copytree(newest, tmp_path / "copy")
    flags = [f"--checkpoint={copy}", f"--video_dir={tmp_path / 'videos'}", "--video_overlay"]
    code, printed = run(*EXPERIMENT, "--mode=test", *flags, "--test_num_episodes=3")
    assert code == 0, printed
    assert f"{copy} is not in the folder of a run: the results are not recorded" in printed
    video = tmp_path / "videos" / "catch-12345.mp4"
    assert f"video: {video}" in printed
    assert video.stat().st_size > 1000
    (tmp_path / "file").touch()
    flags[1] = f"--video_dir={tmp_path / 'file'}"
    code, printed = run(*EXPERIMENT, "--mode=test", *flags, "--test_num_episodes=3")
    assert code == 2
    assert "error: --video_dir: " in printed
    assert "Traceback" not in printed


@pytest.mark.slow
def test_a_window_shows_the_first_environment(catch):
    code, printed = run(
        *(*EXPERIMENT, "--mode=test", f"--logdir={catch}", "--test_num_episodes=2", "--render"),
        SDL_VIDEODRIVER="dummy",
        SDL_AUDIODRIVER="dummy",
    )
    assert code == 0, printed
    assert "complete games: 2, 2 at a time" in printed


@pytest.mark.slow
def test_several_levels_end_in_the_figures_of_papers(tmp_path):
    """Played by a network of the full action space, as the run recorded it."""
    pytest.importorskip("ale_py")
    save(tmp_path, level_name="PongNoFrameskip-v4", full_action_space=True)
    command = (*EXPERIMENT, "--mode=test", f"--logdir={tmp_path}")
    levels = "--test_levels=BreakoutNoFrameskip-v4,ALE/Breakout-v5"
    flags = "--test_num_episodes=2", "--num_action_repeats=40"
    code, printed = run(*command, levels, *flags)
    assert code == 0, printed
    v4, v5 = evaluations(tmp_path)
    assert v4["options"]["full_action_space"], "as the run recorded it"
    assert v4["options"]["num_action_repeats"] == 40, "as the command line says"
    assert v4["options"]["no_reward_steps"] == 0
    assert v4["normalised_score"] == pytest.approx((v4["mean"] - 1.7) / (30.5 - 1.7))
    of_both = (v4["normalised_score"] + v5["normalised_score"]) / 2
    assert f"normalised over 2 levels: median {of_both:,.2f}, mean {of_both:,.2f}" in printed
    assert "(of all 4 games played, pooled)" in printed


@pytest.mark.slow
def test_an_evaluator_waits_for_a_run_tests_its_checkpoints_and_goes_on_after_a_restart(tmp_path):
    command = (*EXPERIMENT, "--job_name=evaluator", f"--logdir={tmp_path}", "--test_num_episodes=3")
    first = Process(*command)
    first.until(rf"\[evaluator\] waiting for a new checkpoint in {tmp_path}/checkpoints")
    save(tmp_path, 1, 1000.0, level_name="catch")
    first.until(r"\[evaluator\] catch: mean return -?\d\.\d\d .* of 3 games at 1,000 frames")
    first.until("waiting for a checkpoint after that of 1,000 frames")
    first.interrupt(30)
    again = Process(*command)
    again.until("waiting for a checkpoint")
    assert "mean return" not in again.printed()
    save(tmp_path, 2, 2000.0, level_name="catch")
    again.process.send_signal(signal.SIGUSR1)  # the run has ended
    assert again.wait(30) == 0
    assert [row["updates"] for row in evaluations(tmp_path)] == [1, 2]
