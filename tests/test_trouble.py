"""Faults of users' machines: each is reported, and nothing is lost or hangs."""

import re
import signal

import numpy as np
import pytest
import tensorflow as tf
from processes import Process, catch_command, run
from rows import read_rows


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_stops_training_and_is_applied_nowhere(tmp_path):
    command = catch_command(
        tmp_path,
        "--algorithm=tests.helpers.faults",
        "--save_checkpoint_secs=0.2",
        "--total_environment_frames=1e6",  # otherwise the run may reach its goal before the fault
        '--on_event=[ "$IMPALA_MM_EVENT" = save ] || echo "$IMPALA_MM_EVENT"',
    )
    code, printed = run(*command, FAULTS="400:nan")  # several checkpoints may be written before
    assert code == 1, printed
    assert sorted((tmp_path / "on_event.log").read_text().split()) == ["end", "nan"]
    assert "error: update 401 is not finite (grad_norm = nan); it was not applied" in printed
    assert (
        "; it was not applied: lower --learning_rate or --gradients_clipping, or bound the "
        "rewards: --max_abs_reward, --reward_clipping; the last " in printed
    )
    assert f"is intact: the same flags with --logdir={tmp_path} resume from it" in printed
    assert "Traceback" not in printed
    assert read_rows(tmp_path)[-1]["updates"] == 400
    newest = sorted((tmp_path / "checkpoints").glob("[0-9]*"))[-1]
    assert int(newest.name) <= 400
    reader = tf.train.load_checkpoint(str(newest / "variables"))
    values = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    numbers = [v for v in values if isinstance(v, np.ndarray) and v.dtype == np.float32]
    assert len(numbers) > 5
    assert all(np.isfinite(v).all() for v in numbers)


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["3e38", "1e6"])
def test_a_learning_rate_that_is_far_too_large_saves_nothing_infinite_and_is_named(tmp_path, rate):
    flags = f"--learning_rate={rate}", "--save_checkpoint_secs=0.2", "--stop_at_return=9"
    command = catch_command(tmp_path, *flags, "--total_environment_frames=20000")
    code, printed = run(*command)
    saved = list((tmp_path / "checkpoints").glob("[0-9]*"))
    assert "Traceback" not in printed
    if rate == "3e38":
        assert code == 1, printed
        assert re.search(
            r"error: update \d+ made variables infinite, NaN or larger than 1e19: network/\S+",
            printed,
        )
        assert not saved
    else:
        assert code == 0, printed
        assert printed.count("warning: root mean square of the weights = ") == 1
        assert saved


@pytest.mark.slow
def test_a_disk_that_is_full_costs_rows_and_checkpoints_but_not_the_run(tmp_path):
    """Rows go to a full device, and checkpoints exceed the limit of a file's size."""
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    command = catch_command(
        tmp_path, "--total_environment_frames=20000", "--save_checkpoint_secs=1"
    )
    code, printed = run("bash", "-c", 'ulimit -f 40; exec "$@"', "bash", *command)
    assert code == 1, "the exit code says that nothing was saved"
    assert printed.count("metrics cannot be written ([Errno 28] No space left on device)") == 1
    assert printed.count("checkpoints cannot be written (File too large); earlier ones") == 1
    assert "finished: reached 20,000 frames" in printed
    assert "error: the last checkpoint could not be written" in printed
    assert not list((tmp_path / "checkpoints").iterdir()), "nothing half-written is left"


@pytest.mark.slow  # test_lifecycle raises the signals, and test_learner_link waits for learners
def test_an_actor_without_a_learner_ends_at_once_when_asked(tmp_path):
    actor = Process(*catch_command(tmp_path, "--job_name=actor"))
    actor.until("waiting for the learner at")
    actor.process.send_signal(signal.SIGTERM)
    assert actor.wait(10) == 143
    assert "finished: stopped by SIGTERM" in actor.printed()


@pytest.mark.slow
def test_an_actor_held_back_by_a_full_queue_ends_at_once_when_asked(tmp_path):
    """Its learner ends at once, too, during a long update."""
    command = catch_command(tmp_path, "--algorithm=tests.helpers.heavy", "--queue_capacity=1")
    learner = Process(*command, "--job_name=learner")
    actor = Process(*command, "--job_name=actor")
    learner.until(r"bottleneck: learner \(")
    actor.process.send_signal(signal.SIGTERM)
    assert actor.wait(10) == 143
    learner.interrupt(10)
