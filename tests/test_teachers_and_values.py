"""Recurrent Q-learning with replay, and a student of a teacher, in real runs on a memory task.

The return of a policy without memory is at most 0.5.
"""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from deadlines import Deadline
from processes import EXPERIMENT, Process, free_port, is_running, needs_horovod, run
from rows import read_rows

from launcher.supervise.procfs import descendants

pytestmark = pytest.mark.slow
Q, STUDENT = "--algorithm=tests.algorithms.recurrent_q", "--algorithm=tests.algorithms.student"
ENDLESS = "--total_environment_frames=1e9"
SECONDS = 240  # at most until a run has learnt, on a machine with much else to do


def _command(logdir, *flags):
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    return (*EXPERIMENT, "--level_name=memory", address, f"--logdir={logdir}", *flags)


def _until_learnt(logdir, least, seconds=SECONDS):
    deadline = Deadline(seconds)
    while not (rows := read_rows(logdir)) or rows[-1].get("episode_return", 0) < least:
        assert not deadline.is_over(), rows[-1:]
        time.sleep(0.2)


def _stop(process):
    """Stop a run by Ctrl-C, which leaves no process."""
    processes = descendants(process.process.pid)
    process.process.send_signal(signal.SIGINT)
    assert process.wait(40) == 130, process.printed()
    deadline = Deadline(20)
    while alive := [pid for pid in processes if is_running(pid)]:
        assert not deadline.is_over(), alive
        time.sleep(0.1)
    assert "Traceback" not in process.printed()


def _tested(logdir, *flags):
    """Return the mean return by --mode=test."""
    code, printed = run(*EXPERIMENT, f"--logdir={logdir}", "--mode=test", *flags)
    assert code == 0, printed
    return float(re.search(r"return +(-?[\d.]+)", printed)[1])


def _played_by_export(logdir, folder):
    """Return the mean return of 32 games of an exported policy, played with TensorFlow alone."""
    exported = (*EXPERIMENT, f"--logdir={logdir}", "--mode=export", f"--export_dir={folder}")
    code, printed = run(*exported)
    assert code == 0, printed
    agent = tf.saved_model.load(str(folder))
    act, begin = agent.signatures["serving_default"], agent.signatures["initial_state"]
    cue, cleared = np.arange(32) % 2, None
    state, action, none = begin(batch_size=tf.constant(32)), tf.zeros([32], tf.int32), tf.zeros(32)
    for t in range(10):
        sign = cue if t == 0 else np.full(32, {8: 2, 9: 3}.get(t, -1))
        out = act(
            observation=tf.one_hot(sign, 4),
            first=tf.fill([32], t == 0),
            exploration=none,
            last_action=action,
            last_reward=none,
            **state,
        )
        action, state = out["action"], {name: out[name] for name in state}
        cleared = action.numpy() == 0 if t == 8 else cleared
    return np.mean(cleared & (action.numpy() == cue))


def _replay(logdir, rank=0):
    """Return the newest saved replay of a learner: (arrays by name, priorities)."""
    folder = sorted((logdir / "own" / f"learner-{rank}").glob("[0-9]*"))[-1] / "source"
    arrays = {p.stem: np.load(p) for p in folder.glob("*.npy")}
    return arrays, np.load(folder / "priorities.npz")


def _check_epsilons(arrays, environments):
    """Check that the environments whose unrolls are held explored by Ape-X's schedule."""
    held = arrays["batch.unrolls.extras"]
    schedule = 0.4 ** (1 + 7 * np.arange(environments) / (environments - 1))
    found = np.unique(held[held > 0])
    assert len(found) == environments
    np.testing.assert_allclose(found, sorted(schedule), rtol=1e-4)


def _targets(logdir):
    saved = sorted((logdir / "checkpoints").glob("[0-9]*"))[-1] / "variables"
    names = [name for name, _ in tf.train.list_variables(str(saved)) if name.startswith("weights/")]
    return [tf.train.load_variable(str(saved), name) for name in names]


def test_recurrent_q_learns_resumes_with_its_replay_and_is_tested_exported_and_trained_from(
    tmp_path,
):
    first, flags = tmp_path / "first", (Q, "--num_actors=1", ENDLESS)
    process = Process(*_command(first, *flags))
    _until_learnt(first, 0.85)
    _stop(process)
    row = read_rows(first)[-1]
    assert row["replay_share"] == pytest.approx(0.75)
    # 20 steps of each of 8 new unrolls, and nothing of 24 replayed ones; resets do not count.
    assert 0.85 * 160 < row["frames"] / row["updates"] < 160
    before, priorities = _replay(first)
    _check_epsilons(before, 16)
    assert len(np.unique(priorities["priorities"][: priorities["added"]])) > 100

    process = Process(*_command(first, *flags, "--baseline_cost=0.3"))
    process.until(r"restored its source \(", 120)
    process.until(r"[1-9][0-9,]* frames \| [1-9][0-9,]*/s .*lag", 120)
    process.until("note: .*recurrent_q has not read --baseline_cost=0.3: this has no effect", 20)
    _stop(process)
    after, priorities = _replay(first)
    kept = np.isin(after["batch.key"], before["batch.key"]) & (after["batch.weight"] > 0)
    assert kept.sum() > 100
    for name in ("batch.unrolls.observation", "batch.unrolls.extras", "batch.unrolls.first"):
        np.testing.assert_array_equal(after[name][:, kept], before[name][:, kept])
    # Each of the two ends leaves at most one batch that was returned, but not trained on.
    assert 0 <= priorities["added"] / 8 - read_rows(first)[-1]["updates"] <= 2
    _check_epsilons(after, 16)

    assert _tested(first, "--test_num_episodes=20") > 0.8
    assert _played_by_export(first, tmp_path / "export") > 0.8
    second = tmp_path / "second"
    start = ("--mode=train_from", f"--checkpoint={first}", "--total_environment_frames=2000")
    code, printed = run(*_command(second, Q, "--num_actors=1", *start))
    assert code == 0, printed
    assert read_rows(second)[-1]["updates"] < 50, "before the next copy to the targets"
    for found, expected in zip(_targets(second), _targets(first), strict=True):
        np.testing.assert_array_equal(found, expected)


@needs_horovod
def test_recurrent_q_on_two_learners_that_infer_survives_the_kill_of_one(tmp_path):
    flags = (
        *(Q, "--num_learners=2", "--num_actors=2", ENDLESS, "--check_sync_every=10"),
        *("--inference=learner", "--batch_size=4", "--replayed=12", "--save_checkpoint_secs=3"),
    )
    process = Process(*_command(tmp_path, *flags))
    _until_learnt(tmp_path, 0.6)
    processes = descendants(process.process.pid)
    learners = [
        pid for pid in processes if "--job_name=learner" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(learners[-1], signal.SIGKILL)
    assert process.wait(60) not in {0, 130}
    process = Process(*_command(tmp_path, *flags))
    process.until(r"restored its source \(", 180)
    begin = len(read_rows(tmp_path))
    deadline = Deadline(SECONDS)
    while len(read_rows(tmp_path)) < begin + 5 or not read_rows(tmp_path)[-1].get("sync_checks"):
        assert not deadline.is_over()
        time.sleep(0.2)
    _until_learnt(tmp_path, 0.85)
    _stop(process)
    rows = read_rows(tmp_path)
    assert rows[-1]["sync_repairs"] == 0
    shares = [row["replay_share"] for row in rows if "replay_share" in row]
    assert shares[-1] == pytest.approx(0.75)
    keys = [set(_replay(tmp_path, rank)[0]["batch.start.core.cell"][:, 0]) for rank in range(2)]
    assert keys[0] != keys[1], "each learner keeps its own replay"
    _check_epsilons(
        {
            "batch.unrolls.extras": np.concatenate(
                [_replay(tmp_path, rank)[0]["batch.unrolls.extras"] for rank in range(2)], 1
            )[-1]
        },
        32,
    )


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    flags = ("--agent_name=MLPLSTMAgent", "--learning_rate=0.003", "--num_actors=1")
    end = ("--stop_at_return=0.95", "--total_environment_frames=300000")
    code, printed = run(*_command(folder, *flags, *end), limit=300)
    assert code == 0, printed
    return folder


STUDENTS = ("--learning_rate=0.005", "--unroll_length=11", "--teacher_cost=5")


def test_a_student_learns_from_a_recurrent_teacher_and_resumes(teacher, tmp_path):
    folder = tmp_path / "student"
    flags = (STUDENT, f"--teacher={teacher}", *STUDENTS, "--num_actors=1", ENDLESS)
    process = Process(*_command(folder, *flags))
    _until_learnt(folder, 0.8)
    _stop(process)
    rows = [row for row in read_rows(folder) if "teacher/kl" in row]
    taught = [row["teacher/kl"] for row in rows if row["teacher/cost"]]
    assert min(taught) < 0.3 * taught[0], "it may leave its teacher once that costs nothing"
    cost = 5 * max(0, 1 - rows[-1]["frames"] / 20000)
    assert rows[-1]["teacher/cost"] == pytest.approx(cost, abs=1)
    updates = rows[-1]["updates"]
    process = Process(*_command(folder, *flags))
    process.until(r"[1-9][0-9,]* frames \| [1-9][0-9,]*/s .*lag", 120)
    _stop(process)
    assert read_rows(folder)[-1]["updates"] > updates
    assert _tested(folder, "--test_num_episodes=20") > 0.6
    assert _played_by_export(folder, tmp_path / "export") > 0.6


@needs_horovod
def test_a_student_on_two_learners_that_infer_holds_equal_variables(teacher, tmp_path):
    flags = (
        *(STUDENT, f"--teacher={teacher}", *STUDENTS, "--num_learners=2", "--num_actors=2"),
        *("--inference=learner", "--check_sync_every=5", "--total_environment_frames=8000"),
    )
    code, printed = run(*_command(tmp_path, *flags), limit=240)
    assert code == 0, printed
    row = read_rows(tmp_path)[-1]
    assert row["sync_checks"] > 5
    assert row["sync_repairs"] == 0


def test_a_teacher_that_does_not_exist_is_refused_in_one_sentence(tmp_path):
    for teacher, said in (
        (tmp_path / "none", f"{tmp_path}/none does not exist"),
        ("", "--teacher must be the folder of the run of a trained policy"),
    ):
        code, printed = run(*_command(tmp_path / "run", STUDENT, f"--teacher={teacher}"))
        assert code == 2, printed
        assert f"error: --algorithm=tests.algorithms.student: {said}" in printed
        assert "Traceback" not in printed
