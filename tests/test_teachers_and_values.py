"""Recurrent Q-learning with prioritised replay, in a real run on a memory task.

The return of a policy without memory is at most 0.5.
"""

import re
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from processes import EXPERIMENT, Process, free_port, is_running, run
from rows import read_rows

from launcher.node.procfs import descendants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Q = "--algorithm=tests.algorithms.recurrent_q"
ENDLESS = "--total_environment_frames=1e9"
SECONDS = 240  # at most until a run has learnt, on a machine with much else to do


def _command(logdir, *flags):
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    return (*EXPERIMENT, "--level_name=memory", address, f"--logdir={logdir}", *flags)


def _until_learnt(logdir, least, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not (rows := read_rows(logdir)) or rows[-1].get("episode_return", 0) < least:
        assert time.monotonic() < deadline, rows[-1:]
        time.sleep(0.2)


def _stop(process):
    """Stop a run by Ctrl-C, which leaves no process."""
    processes = descendants(process.process.pid)
    process.process.send_signal(signal.SIGINT)
    assert process.process.wait(40) == 130, process.printed()
    deadline = time.monotonic() + 20
    while alive := [pid for pid in processes if is_running(pid)]:
        assert time.monotonic() < deadline, alive
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

    process = Process(*_command(first, *flags))
    process.until(r"restored its source \(", 120)
    process.until(r"[1-9][0-9,]* frames \| [1-9][0-9,]*/s .*lag", 120)
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
