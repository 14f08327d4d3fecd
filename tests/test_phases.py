"""Students that learn from recorded games first, in real runs, which are killed in each phase."""

import re

import numpy as np
import pytest
from processes import EXPERIMENT, Process, catch_command, free_port, needs_horovod, run
from recorded_catch import FunctionPlayer, record_catch, record_games
from rows import read_rows, until_row
from scripted import catcher
from supervising import until

CATCHER = "--teacher=tests.helpers.scripted:catcher"
QDAGGER = ("--teacher_method=qdagger", "--teacher_episodes=16")


@pytest.mark.slow
def test_the_documented_command_runs_all_phases_in_about_a_minute(tmp_path):
    logdir = tmp_path / "run"
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    asked = ("--mode=reincarnate", "--teacher=cartpole", "--quick")
    code, printed = run(*EXPERIMENT, *asked, address, f"--logdir={logdir}", limit=200)
    assert code == 0, printed
    said = (
        "plays 4 games",
        "collect: ",
        "offline: 200 updates from ",
        "mean return of the teacher",
    )
    assert [each for each in said if each not in printed] == []
    first, *rows = read_rows(logdir)
    assert first["teacher_return"] > 400
    assert first["random_return"] < 100
    assert rows[-1]["frames"] > 0
    assert max(row.get("updates", 0) for row in rows) > 200


SHARED = ("--teacher_data_share=0.25", "--stop_at_return=9")
# What each student of values learns from recorded games, and how it then plays.
STUDENTS = {
    "dqn": ("--cql_cost=1", "--margin_cost=1", "--epsilon_start=0.01"),
    "r2d2": ("--cql_cost=1", "--unroll_length=9", "--burn_in=3", "--num_envs=8"),
    "sac": (
        *(CATCHER, "--discrete_sac", "--teacher_cost=5", "--random_steps=100"),
        *("--updates_per_step=0.25", "--minibatch_steps=64"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_student_of_values_learns_recorded_games_before_it_plays_and_keeps_them(
    tmp_path, algorithm
):
    """Killed online, it has them again."""
    record_catch(tmp_path / "games", 60, 9, catcher)
    logdir = tmp_path / "run"
    flags = (f"--algorithm={algorithm}", f"--teacher_data={tmp_path / 'games'}", *SHARED)
    flags += (*STUDENTS[algorithm], "--offline_updates=400", "--save_checkpoint_secs=1")
    command = catch_command(logdir, *flags, "--total_environment_frames=1e9")
    process = Process(*command)
    process.until("offline: 400 updates from 1,797 recorded steps", 120)
    process.until(r"online: 2[45](\.\d)?% of each update is from 1,797 recorded steps", 20)
    until_row(logdir, lambda row: row["frames"] > 2000, 300)
    _wait_for_save(logdir, 401)
    process.kill_all()
    rows = read_rows(logdir)
    offline = [row for row in rows if not row["frames"] and "recorded_share" in row]
    assert {row["recorded_share"] for row in offline} == {1.0}
    returns = [row["episode_return"] for row in rows if "episode_return" in row]
    assert returns[0] > 0, "a random policy has -0.6"
    process = Process(*command)
    process.until(r"online: 2[45](\.\d)?% of each update", 120)
    until_row(logdir, lambda row: row["updates"] > rows[-1]["updates"] + 5)
    process.interrupt()
    assert "offline:" not in process.printed()
    assert read_rows(logdir)[-1]["recorded_share"] == pytest.approx(0.25, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "flags", "said", "least"),
    [
        # At random the mean return is about 20; few games of a policy that can play end so soon.
        ("dqfd", ("--teacher_steps=4000", "--offline_updates=600"), "offline: 600 updates", 40),
        ("reload", (), "training starts with the weights of ", 300),
    ],
)
def test_a_preset_that_begins_with_what_others_have_learnt_plays_well_soon(
    tmp_path, preset, flags, said, least
):
    end = ("--total_environment_frames=4000", "--stop_at_return=inf", f"--logdir={tmp_path}")
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    code, printed = run(*EXPERIMENT, f"--preset={preset}", address, *flags, *end, limit=300)
    assert code == 0, printed
    assert said in printed
    returns = [row["episode_return"] for row in read_rows(tmp_path) if "episode_return" in row]
    if preset == "reload":
        assert min(returns, default=500) > least
    else:
        assert max(returns) > least


@pytest.mark.slow
def test_a_run_may_go_on_from_another_ones_optimizer_and_replay(tmp_path):
    flags = ("--algorithm=dqn", "--replay_save", "--stop_at_return=9")
    old, new = tmp_path / "old", tmp_path / "new"
    code, printed = run(*catch_command(old, *flags, "--total_environment_frames=3000"))
    assert code == 0, printed
    reload = ("--mode=train_from", f"--checkpoint={old}", "--reload_optimizer", "--reload_replay")
    more = ("--total_environment_frames=1000", "--learning_rate=0.0001")
    code, printed = run(*catch_command(new, *flags, *reload, *more))
    assert code == 0, printed
    assert f"training starts with the weights and the optimizer of {old}/checkpoints/" in printed
    held = re.search(r"training begins with this many unrolls: \w+: ([\d,]+)", printed)
    stored = read_rows(old)[-1]["replay_unrolls/prioritised"]
    assert int(held[1].replace(",", "")) >= stored > 100, printed


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_in_each_phase(tmp_path):
    phases = (*QDAGGER, "--teacher_steps=6000", "--offline_updates=1000", "--learning_rate=0.0001")
    flags = (CATCHER, *phases, "--save_checkpoint_secs=1", "--stop_at_return=9")
    command = catch_command(tmp_path, *flags, "--total_environment_frames=1e9")

    def start_and_kill(pattern, also=lambda: None):
        process = Process(*command)
        process.until(pattern, 120)
        also()
        process.kill_all()
        return process.printed()

    printed = start_and_kill("plays 16 games")
    assert "mean return of the teacher" not in printed

    folder = tmp_path / "teacher_data" / "learner-0"

    def wait_for_file():
        until(lambda: list(folder.glob("*.unrolls")), 60)

    printed = start_and_kill("collect: the teacher plays 6,000 steps", wait_for_file)
    assert "plays 16 games" in printed, "it was killed before it had played them"
    first = read_rows(tmp_path)[0]
    assert (first["teacher_return"], first["frames"], first["updates"]) == (1.0, 0, 0)

    printed = start_and_kill(r"offline: [1-9]\d* of 1,000", lambda: _wait_for_save(tmp_path))
    assert "plays 16 games" not in printed, "its mean return is in the checkpoint"
    if more := re.findall(r"collect: the teacher plays ([\d,]+) steps", printed):
        assert int(more[0].replace(",", "")) < 6000
    printed = start_and_kill(r"offline: [1-9][\d,]* of 1,000 updates", lambda: None)
    (left,) = re.findall(r"offline: ([\d,]+) updates from", printed)
    assert int(left.replace(",", "")) < 1000
    assert "collect:" not in printed

    def wait_for_play():
        until_row(tmp_path, lambda row: row["frames"] > 1000, 300)
        _wait_for_save(tmp_path, 1001)

    start_and_kill("offline: ", wait_for_play)
    rows = read_rows(tmp_path)
    costs = [row["teacher_cost"] for row in rows if "teacher_cost" in row and not row["frames"]]
    assert set(costs) == {1.0}, "it does not fall before the student plays"
    process = Process(*command)
    process.until("resumed at", 120)
    before = read_rows(tmp_path)[-1]["updates"]
    until_row(tmp_path, lambda row: row["updates"] > before)
    process.interrupt()
    assert "offline:" not in process.printed()
    assert "plays 16 games" not in process.printed()
    assert not [row for row in read_rows(tmp_path)[1:] if "teacher_return" in row]


def _wait_for_save(logdir, updates=1):
    """Wait until a checkpoint of at least that many updates is complete."""
    saved = (logdir / "checkpoints").glob
    until(lambda: [path for path in saved("0*/about.json") if int(path.parent.name) >= updates], 60)


@pytest.mark.slow
@needs_horovod
@pytest.mark.parametrize("algorithm", ["impala", "r2d2", "sac"])
def test_two_learners_to_whom_recorded_games_are_dealt_out_hold_the_same_bits(tmp_path, algorithm):
    """The digests of all variables are compared after each update."""
    record_catch(tmp_path / "games", 30, 9, catcher)
    logdir = tmp_path / "run"
    two = ("--num_learners=2", "--num_actors=2", "--batch_size=8", "--check_sync_every=1")
    flags = (f"--algorithm={algorithm}", f"--teacher_data={tmp_path / 'games'}", *two)
    flags += SHARED if algorithm in STUDENTS else SHARED[1:]
    length = ("--offline_updates=60", "--total_environment_frames=1500")
    more = STUDENTS.get(algorithm, ())
    code, printed = run(*catch_command(logdir, *flags, *more, *length), limit=300)
    assert code == 0, printed
    assert "offline: 60 updates from 897 recorded steps" in printed
    rows = read_rows(logdir)
    last = [row for row in rows if row.get("offline_updates")][-1]
    assert last["sync_checks"] >= last["updates"] - 1 > 0
    assert rows[-1]["sync_checks"] == rows[-1]["updates"] > 60
    assert rows[-1]["sync_repairs"] == 0


@pytest.mark.slow
@needs_horovod
def test_two_learners_learn_from_their_own_games_and_hold_the_same_variables_and_cost(tmp_path):
    two = ("--num_learners=2", "--num_actors=2", "--batch_size=8", "--check_sync_every=5")
    length = ("--total_environment_frames=8000", "--unroll_length=32", "--stop_at_return=9")
    phases = ("--teacher_steps=1000", "--offline_updates=60")
    flags = ("--algorithm=ppo", CATCHER, *QDAGGER, *two, *length, *phases)
    code, printed = run(*catch_command(tmp_path, *flags), limit=300)
    assert code == 0, printed
    assert printed.count("collect: the teacher plays 500 steps") == 1, "rank 0 says so"
    assert printed.count("plays 16 games") == 1, "rank 0 measures, and the others learn it"
    assert len(list((tmp_path / "teacher_data").iterdir())) == 2
    rows = read_rows(tmp_path)
    assert rows[-1]["sync_checks"] > 0
    assert rows[-1]["sync_repairs"] == 0
    assert rows[-1]["frames"] >= 8000
    scored = [row for row in rows if {"student_score", "teacher_cost"} <= row.keys()]
    assert scored
    assert all(0 <= row["teacher_cost"] <= 1 for row in scored)


class Swinger(FunctionPlayer):
    """A player that swings a pendulum up and holds it, but for a half of random actions."""

    def step(self, entry, state, explore):
        cos, sin, speed = entry.observation.numpy().T
        missing = 5 - speed**2 / 6 - 5 * cos  # of the energy that it has above
        swing = np.sign(speed) * np.sign(missing)
        hold = np.clip(-5 * np.arctan2(sin, cos) - speed, -1, 1)
        torque = np.where((cos > 0.9) & (np.abs(speed) < 4), hold, swing)
        drawn = self._random.uniform(-1, 1, [2, len(torque)])
        torque = np.where(drawn[0] < 0, drawn[1], torque)
        return torque[:, np.newaxis].astype(np.float32), state, ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [("iql", ()), ("td3", ("--cloning=2.5", "--normalize_observations=true"))],
    ids=["iql", "td3+bc"],
)
def test_a_run_without_actors_learns_from_recorded_games_and_is_tested(tmp_path, algorithm, flags):
    about = record_games("Pendulum-v1", Swinger, tmp_path / "games", 5, 20, num_envs=8)
    assert -650 < about.mean_return < -350
    logdir = tmp_path / "run"
    command = (
        *(*EXPERIMENT, f"--algorithm={algorithm}", "--level_name=Pendulum-v1", *flags),
        *(f"--teacher_data={tmp_path / 'games'}", "--offline_updates=300", "--num_actors=0"),
        *("--mlp_sizes=64,64", "--reward_scaling=0.1", "--save_checkpoint_secs=10"),
        *("--deterministic", "--test_num_episodes=32", f"--logdir={logdir}"),
    )
    code, printed = run(*command, limit=900)
    assert code == 0, printed
    assert re.search(r"300 updates from 8,0\d\d recorded steps .*; the run ends after", printed)
    rows = [row for row in read_rows(logdir) if row.get("offline_updates")]
    assert rows[-1]["frames"] == 0
    assert rows[-1]["updates"] == 300
    tested = read_rows(logdir, "evaluations.jsonl")
    assert tested[-1]["updates"] == 300
    assert tested[-1]["mean"] > about.mean_return + 100
    code, printed = run(*command, limit=200)
    assert code == 0, printed
    assert "it has reached its 300 offline updates" in printed
