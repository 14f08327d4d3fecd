"""Students in real runs: metrics, kill -9 and resume, and a teacher that is gone."""

import re
import shutil

import pytest
from dopamine_stacks import unpack
from processes import ROOT, Process, catch_command, run
from rows import read_rows, until_row

QDAGGER = ("--teacher_method=qdagger", "--teacher_episodes=16")


@pytest.mark.slow  # test_load refuses it; test_processes prints another mistake of a learner
def test_what_cannot_teach_ends_the_run_in_a_sentence(tmp_path):
    flags = ("--job_name=learner", "--teacher=tests.helpers.scripted:broken")
    code, printed = run(*catch_command(tmp_path, *flags))
    assert code == 2, printed
    (error,) = re.findall(r"error: (.*)", printed)
    assert error.startswith("--teacher=")
    assert "it raises ValueError: no idea" in error
    assert "Traceback" not in printed


@pytest.mark.slow
def test_a_student_that_is_killed_goes_on_with_its_scores_and_cost_and_needs_no_teacher_in_the_end(
    tmp_path,
):
    teacher, folder = tmp_path / "teacher", tmp_path / "run"
    shutil.copytree(ROOT / "impala_mm" / "shipped_policies" / "cartpole", teacher)
    common = ("--level_name=CartPole-v1", f"--teacher={teacher}", *QDAGGER)
    flags = (*common, "--save_checkpoint_secs=1", "--stop_at_return=1e9", "--learning_rate=0.0001")
    command = catch_command(folder, *flags, "--total_environment_frames=1e9")
    first = Process(*command)
    until_row(folder, lambda row: row.get("teacher_cost", 1) < 0.99)
    first.skip()
    first.until(r"checkpoint at update", 60)
    first.kill_all()
    first_row = read_rows(folder)[0]
    assert first_row["frames"] == 0
    assert first_row["teacher_return"] == pytest.approx(500, abs=20)
    assert first_row["random_return"] == pytest.approx(22, abs=8)
    before = read_rows(folder)

    second = Process(*command)
    second.until(r"resumed at ", 60)
    # The first row of a resumed run has what the checkpoint has, and no update of its own.
    until_row(folder, lambda row: row["updates"] > before[-1]["updates"] and "teacher_cost" in row)
    rows = read_rows(folder)[len(before) :]
    assert "plays 16 games" not in second.printed()
    assert not [row for row in rows if "teacher_return" in row]
    # Its score is not known before the 100th game: the cost is the one before the kill.
    costs = [row["teacher_cost"] for row in before if "teacher_cost" in row]
    now = next(row["teacher_cost"] for row in rows if "teacher_cost" in row)
    assert costs[-1] - 0.1 < now < 0.999, "a new run begins with 1"
    second.interrupt()

    frames = read_rows(folder)[-1]["frames"]
    over = (*flags, f"--teacher_frames={frames + 1000:.0f}")
    for more in (5000, 9000):
        end = f"--total_environment_frames={frames + more:.0f}"
        code, printed = run(*catch_command(folder, *over, end))
        assert code == 0, printed
        shutil.rmtree(teacher, ignore_errors=True)
    assert "has fallen to 0: no learner reads it again" in printed


@pytest.mark.slow
def test_a_student_whose_teacher_acted_at_first_plays_alone_in_the_end(tmp_path):
    """In one run its mean return was 93 while it was guided, and 204 after 150,000 frames."""
    flags = ("--preset=jsrl", "--level_name=CartPole-v1", "--stop_at_return=1e9")
    length = ("--teacher_frames=80000", "--total_environment_frames=180000")
    code, printed = run(*catch_command(tmp_path, *flags, *length), limit=900)
    assert code == 0, printed
    shares = [row["guidance"] for row in read_rows(tmp_path) if "guidance" in row]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5
    assert shares[-1] == 0
    assert read_rows(tmp_path)[-1]["episode_return"] > 100, "a random policy has 22"


@pytest.mark.slow
def test_a_teacher_of_dopamines_teaches_and_plays_for_its_student(tmp_path):
    """Its games are recorded, and its divergence measured, before and while actors play."""
    checkpoints = unpack(tmp_path / "dopamine", "dqn")
    level = ("--level_name=BreakoutNoFrameskip-v4", f"--teacher={checkpoints}")
    phases = ("--teacher_steps=600", "--offline_updates=5", "--batch_size=4", "--num_envs=4")
    # Its returns are given, since this teacher is an untrained one.
    returns = ("--teacher_method=qdagger", "--teacher_return=30", "--random_return=1.7")
    end = ("--total_environment_frames=4000", "--stop_at_return=1e9")
    flags = (*level, *phases, *returns, *end)
    code, printed = run(*catch_command(tmp_path / "run", *flags), limit=400)
    assert code == 0, printed
    assert "collect: the teacher plays 600 steps" in printed
    assert "offline: 5 updates from " in printed
    rows = [row for row in read_rows(tmp_path / "run") if "kl_teacher_pi" in row]
    assert rows[0]["frames"] == 0
    assert rows[-1]["frames"] > 0
    assert read_rows(tmp_path / "run")[-1]["frames"] >= 4000
    assert all(0 < row["kl_teacher_pi"] < 10 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "most"), [("kickstarting", 1e6), ("qdagger", 250_000)])
def test_a_student_of_the_cartpole_policy_solves_it(tmp_path, preset, most):
    flags = (f"--preset={preset}", "--level_name=CartPole-v1", "--stop_at_return=475")
    code, printed = run(*catch_command(tmp_path, *flags), limit=400)
    assert code == 0, printed
    rows = read_rows(tmp_path)
    assert rows[-1]["episode_return"] >= 475
    assert rows[-1]["frames"] < most, "without a teacher it takes 360,000 or more"
    divergences = [row["kl_teacher_pi"] for row in rows if "kl_teacher_pi" in row]
    assert min(divergences) < 0.5 * divergences[0]
