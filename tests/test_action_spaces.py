"""IMPALA learns games with actions of every space, in all the ways in which a run is started."""

import json
import re
import sys

import gymnasium
import pytest
from processes import EXPERIMENT, free_port, needs_horovod, run
from rows import read_rows

from impala_mm import load_policy

pytestmark = pytest.mark.slow

# By chance Harbour returns 4.3 of 10. Stalls raises an error if a forbidden action arrives, and a
# policy that draws evenly among what is allowed returns 6.6. Only the next reward depends on an
# action.
GOALS = {"Harbour": 6.0, "Stalls": 8.5}
LEARNING = "--discounting=0.5", "--learning_rate=0.001", "--total_environment_frames=1e6"


def _train(logdir, *flags, limit=300):
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    return run(*EXPERIMENT, f"--logdir={logdir}", address, *flags, limit=limit)


@pytest.mark.parametrize(
    ("game", "learners", "inference"),
    [
        ("Harbour", 1, "learner"),
        pytest.param("Stalls", 2, "actor", marks=needs_horovod),
    ],
)
def test_a_game_with_other_actions_than_discrete_ones_or_with_masks_is_learnt(
    tmp_path, game, learners, inference
):
    goal = GOALS[game]
    code, printed = _train(
        tmp_path,
        *(f"--level_name=tests.helpers.acting:{game}-v0", *LEARNING, f"--stop_at_return={goal}"),
        *(f"--num_learners={learners}", f"--inference={inference}", "--max_seconds=280"),
    )
    assert code == 0, printed
    assert f"the mean return reached {goal:g}" in printed
    assert "is rebuilt" not in printed, printed
    assert read_rows(tmp_path)[-1]["episode_return"] >= goal
    if game == "Harbour":
        _is_resumed_tested_and_exported(tmp_path, goal)


def _is_resumed_tested_and_exported(logdir, goal):
    level = "--level_name=tests.helpers.acting:Harbour-v0"
    code, printed = _train(logdir, level, *LEARNING, "--box_policy=tanh")
    assert code == 2
    assert "--box_policy is tanh, shared deviation here and normal, shared" in printed, printed
    before = read_rows(logdir)[-1]["frames"]
    code, printed = _train(logdir, level, *LEARNING, "--stop_at_return=inf", "--max_seconds=20")
    assert f"resumed at {before:,.0f} frames" in printed, printed
    code, printed = run(
        *EXPERIMENT,
        "--mode=test",
        f"--logdir={logdir}",
        "--test_num_episodes=50",
        "--deterministic",
    )
    assert code == 0, printed
    assert float(re.search(r"^return +(\S+)", printed, re.MULTILINE)[1]) > goal, printed
    code, printed = run(*EXPERIMENT, "--mode=export", f"--logdir={logdir}")
    assert code == 0, printed
    described = json.loads((logdir / "export" / "signature.json").read_text())
    outputs = described["signatures"]["serving_default"]["outputs"]
    assert {"action_anchor", "action_course", "action_engine_0", "action_lamps"} <= outputs.keys()
    assert described["actions"].startswith("Dict(anchor: Discrete(2), course: Box([1], -3 to 3), ")
    code, printed = run(sys.executable, "example.py", cwd=logdir / "export")
    assert code == 0, printed


def test_taxi_is_trained_tested_and_exported_with_the_masks_in_its_info(tmp_path):
    """The mask of Taxi allows the actions that change something."""
    code, printed = _train(
        tmp_path, "--level_name=Taxi-v3", "--total_environment_frames=20000", "--max_seconds=200"
    )
    assert code == 0, printed
    assert "is rebuilt" not in printed, printed
    assert read_rows(tmp_path)[-1]["frames"] >= 20_000
    code, printed = run(*EXPERIMENT, "--mode=test", f"--logdir={tmp_path}", "--test_num_episodes=5")
    assert code == 0, printed
    code, printed = run(*EXPERIMENT, "--mode=export", f"--logdir={tmp_path}")
    assert code == 0, printed
    assert "action_mask        bool     [B, 6]" in (tmp_path / "export" / "README.txt").read_text()
    code, printed = run(sys.executable, "example.py", cwd=tmp_path / "export")
    assert code == 0, printed
    policy = load_policy(tmp_path)
    environment = gymnasium.make("Taxi-v4")  # which gymnasium makes without objecting
    observation, info = environment.reset(seed=1)
    for explore in [True, False] * 50:
        action = policy(observation, explore=explore, action_mask=info["action_mask"])
        before, (observation, *_, info) = observation, environment.step(action)
        assert observation != before, "the action changed nothing"


def test_pendulum_swings_up(tmp_path):
    """A random policy returns -1,250 with a standard deviation of 300; upright it is above -200."""
    code, printed = _train(
        tmp_path,
        *("--level_name=Pendulum-v1", "--discounting=0.95", "--learning_rate=0.002"),
        *("--reward_clipping=soft_asymmetric", "--entropy_cost=0.001", "--batch_size=32"),
        *("--total_environment_frames=1500000", "--stop_at_return=-500", "--max_seconds=330"),
        limit=380,
    )
    assert code == 0, printed
    assert read_rows(tmp_path)[-1]["episode_return"] >= -500, printed
