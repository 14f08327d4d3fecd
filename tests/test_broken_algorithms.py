"""What a run does with an algorithm that cannot act: it ends soon, and names the user's line."""

import pytest
from processes import EXPERIMENT, ROOT, Process, free_port, run
from rows import read_rows

pytestmark = pytest.mark.slow
PLACE = f"{ROOT}/tests/algorithms/broken_act.py, line "
TWICE = "it crashed twice in the same way before its first unroll"


def _command(folder, *more):
    return (
        *(*EXPERIMENT, "--level_name=tests.helpers.broken_levels:Works-v0", "--check_env_secs=0"),
        *("--algorithm=tests.algorithms.broken_act", f"--logdir={folder}", *more),
    )


def test_a_run_ends_whose_actions_are_all_outside_of_their_space(tmp_path):
    flags = ("--inference=learner", "--num_actors=1")
    code, printed = run(*_command(tmp_path, *flags), ACT="outside", limit=240)
    assert code == 1, printed
    assert "error: no valid unroll came within " in printed
    assert "there are 2 choices" in printed


def test_a_run_goes_on_of_whose_actors_one_crashes_in_act(tmp_path):
    training = Process(*_command(tmp_path, "--num_actors=2"), ACT="raises for actor 0")
    training.until(f"actor 0 on .* gave up: {TWICE}")
    training.until("actor-0 will not be restarted; log: ")
    assert PLACE in training.printed()
    training.interrupt()
    assert read_rows(tmp_path)[-1]["frames"] > 0


def test_by_hand_the_actor_ends_and_the_learner_shows_why(tmp_path):
    address = f"--learner_hosts=localhost:{free_port()}"
    learner = Process(*_command(tmp_path, address, "--job_name=learner"), ACT="raises")
    learner.until("listening at")
    code, printed = run(*_command("", address, "--job_name=actor"), ACT="raises")
    assert code == 1, printed
    assert f"[actor 0] error: InvalidArgumentError at {PLACE}" in printed
    learner.until(f"actor 0 on .*{PLACE}.*no such reward")
    learner.until(r"no unroll yet: 1 (of 1 )?actors connected")
