"""Tests of --mode=test and --job_name=evaluator as users start them."""

import shutil
import signal
import sys

import pytest
from processes import EXIT_CODES, EXPERIMENT, ROOT, Process, run
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
    lines = printed.splitlines()
    assert lines[0].startswith("[test] testing the checkpoint of 12,345 frames, ")
    assert lines[1].split() == ["catch", "mean", "median", "deviation", "least", "most"]
    row = evaluations(catch)[-1]
    assert (row["by"], row["level"], row["seed"], row["num_envs"]) == ("test", "catch", 1, 12)
    assert len(row["returns"]) == 12
    assert row["mean"] == pytest.approx(sum(row["returns"]) / 12)
    assert lines[2].split()[:2] == ["return", f"{row['mean']:.2f}"]
    assert lines[3].split() == ["length", "in", "steps", "9.00", "9.00", "0.00", "9.00", "9.00"]
    assert "complete games: 12, 12 at a time; actions sampled from the policy; seed 1;" in lines[4]
    assert lines[5] == f"[test] recorded in {catch}/evaluations.jsonl"
    assert len(lines) == 6, "no noise"


def test_ctrl_c_says_what_was_played_so_far(catch):
    before = len(evaluations(catch)) if (catch / "evaluations.jsonl").exists() else 0
    process = Process(
        *EXPERIMENT, "--mode=test", f"--logdir={catch}", "--test_num_episodes=10000000"
    )
    process.until(r"catch: (?!0)\d+ of 10000000 games, [\d,]+ steps, [\d,]+/s")
    process.process.send_signal(signal.SIGINT)
    said = r"interrupted after \d+ of 10000000 games of catch, with a mean return of -?\d"
    process.until(said)
    assert process.wait(30) == 130
    assert "Traceback" not in process.printed()
    after = len(evaluations(catch)) if (catch / "evaluations.jsonl").exists() else 0
    assert after == before


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--mode=test plays with a run's trained policy: give the run's --logdir"),
        (["--logdir=/not/there"], "--logdir=/not/there does not exist"),
        (["--logdir={catch}", "--render"], "--render: this machine has no display"),
        (["--logdir={catch}", "--job_name=actor"], "leave --job_name=actor out"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_a_sentence(catch, flags, sentence):
    given = [flag.format(catch=catch) for flag in flags]
    code, printed = run(
        *EXPERIMENT, "--mode=test", *given, DISPLAY="", WAYLAND_DISPLAY="", SDL_VIDEODRIVER=""
    )
    assert code == 2
    assert printed.splitlines()[-1].startswith("error: ")
    assert sentence in printed.splitlines()[-1]
    assert len(printed.splitlines()) == 1, "no stack trace for a user's mistake"


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
    code, printed = run(*EXPERIMENT, "--job_name=evaluator", f"--logdir={catch}", flags[1])
    assert code == 2
    assert " has no effect with --job_name=evaluator: give --mode=test" in printed
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


def _tested(logdir, levels, *flags, limit=120):
    """Test a network of the full action space on these levels; return the output and the rows."""
    pytest.importorskip("ale_py")
    save(logdir, level_name="PongNoFrameskip-v4", full_action_space=True)
    command = (*EXPERIMENT, "--mode=test", f"--logdir={logdir}", f"--test_levels={levels}")
    code, printed = run(*command, *flags, limit=limit)
    assert code == 0, printed
    return printed, evaluations(logdir)


@pytest.mark.slow
def test_several_levels_end_in_the_figures_of_papers(tmp_path):
    """The slow test does the same with all games of atari57."""
    levels = "BreakoutNoFrameskip-v4,ALE/Breakout-v5"
    flags = "--test_num_episodes=2", "--num_action_repeats=40"
    printed, (v4, v5) = _tested(tmp_path, levels, *flags)
    assert v4["options"]["full_action_space"], "as the run recorded it"
    assert v4["options"]["num_action_repeats"] == 40, "as the command line says"
    assert v4["options"]["no_reward_steps"] == 0
    assert v4["human_normalised"] == pytest.approx((v4["mean"] - 1.7) / (30.5 - 1.7))
    of_both = (v4["human_normalised"] + v5["human_normalised"]) / 2
    assert f"human-normalised over 2 games: median {of_both:,.2f}, mean {of_both:,.2f}" in printed
    assert "(of all 4 games played, pooled)" in printed


@pytest.mark.slow
def test_all_57_games_are_played_by_a_network_of_the_full_action_space(tmp_path):
    flags = "--test_num_episodes=1", "--num_action_repeats=60", "--no_reward_steps=30"
    printed, rows = _tested(tmp_path, "atari57", *flags, limit=1500)
    assert "human-normalised over 57 games: median " in printed
    assert len({row["level"] for row in rows}) == 57


@pytest.mark.slow
def test_an_evaluator_waits_for_a_run_tests_its_checkpoint_and_ends_when_asked(tmp_path):
    evaluator = Process(*EXPERIMENT, "--job_name=evaluator", f"--logdir={tmp_path}")
    evaluator.until(rf"\[evaluator\] waiting for a new checkpoint in {tmp_path}/checkpoints")
    save(tmp_path, 1, 1000.0, level_name="catch")
    evaluator.until(r"\[evaluator\] catch: mean return -?\d\.\d\d .* of 10 games at 1,000 frames")
    evaluator.until("waiting for a checkpoint after that of 1,000 frames")
    save(tmp_path, 2, 2000.0, level_name="catch")
    evaluator.process.send_signal(signal.SIGUSR1)  # the run has ended
    assert evaluator.wait(30) == 0
    assert [row["updates"] for row in evaluations(tmp_path)] == [1, 2]


@pytest.mark.slow
def test_an_evaluator_goes_on_after_a_restart(tmp_path):
    command = (*EXPERIMENT, "--job_name=evaluator", f"--logdir={tmp_path}", "--test_num_episodes=3")
    first = Process(*command)
    first.until(rf"\[evaluator\] waiting for a new checkpoint in {tmp_path}/checkpoints")
    save(tmp_path, 1, 1000.0, level_name="catch")
    first.until(r"\[evaluator\] catch: mean return -?\d\.\d\d .* of 3 games at 1,000 frames")
    first.until("waiting for a checkpoint after that of 1,000 frames")
    first.process.send_signal(signal.SIGINT)
    assert first.wait(30) == EXIT_CODES[signal.SIGINT] == 130
    again = Process(*command)
    again.until("waiting for a checkpoint")
    assert "mean return" not in again.printed()
    save(tmp_path, 2, 2000.0, level_name="catch")
    again.until("of 3 games at 2,000 frames")
    again.process.send_signal(signal.SIGUSR1)
    assert again.wait(30) == 0
    assert [row["updates"] for row in evaluations(tmp_path)] == [1, 2]
