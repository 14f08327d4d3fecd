"""Environments with goals: which ones can be judged, and what is said of the others."""

import gymnasium
import numpy as np
import pytest
from counting import level
from gymnasium.spaces import Box, Dict, Discrete

from impala_mm.config.settings import Config
from impala_mm.environments import from_flags, spaces
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.types import BadLevel

NUMBERS = Box(-1, 1, (2,), np.float64)


class Reaching(gymnasium.Env):
    """An environment that says nothing of its goals."""

    action_space = Discrete(2)

    def __init__(self, achieved=NUMBERS, desired=NUMBERS):
        parts = {"observation": NUMBERS, "achieved_goal": achieved, "desired_goal": desired}
        self.observation_space = Dict(parts)


class Judged(Reaching):
    def compute_reward(self, achieved_goal, desired_goal, info):
        assert achieved_goal.dtype == desired_goal.dtype == np.float64
        assert achieved_goal.shape == desired_goal.shape == (2,)
        assert info == {}
        return -np.abs(achieved_goal - desired_goal).max()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Judged, ""),
        (Reaching, "no method compute_reward"),
        (lambda: Judged(desired=Box(-1, 1, (3,))), "differ in shape or type"),
        (lambda: Judged(Discrete(4), Discrete(4)), "not arrays of numbers"),
        (lambda: Judged(desired=Dict(x=NUMBERS)), "not arrays of numbers"),
        (lambda: gymnasium.make("CartPole-v1"), "no Dict with the keys observation, achieved_goal"),
    ],
)
def test_a_level_says_why_its_steps_get_no_other_goals(made, why):
    found = level_spec(level(lambda **_: made())).without_goals
    assert (why in found) if why else found == ""


def test_each_of_several_levels_must_have_goals(capsys):
    config = Config.of_algorithm("dqn")
    judged, other = level(lambda **_: Judged()), level(lambda **_: Reaching())
    flags = {"algorithm": "dqn", "level_name": f"{judged},{other}"}
    assert len(from_flags.level_specs(config(**flags))) == 2
    with pytest.raises(SystemExit):
        from_flags.level_specs(config(**flags, her_ratio=4))
    assert f"--her_ratio=4: no other goals can be given to the steps of {other}" in (
        capsys.readouterr().err
    )


def test_one_goal_at_a_time_is_judged_in_the_type_of_its_space_also_below_wrappers():
    name = level(lambda **_: Judged(), max_episode_steps=5)
    environments = make_environments(name, 2, seed=0)
    achieved, desired = np.zeros([3, 2], np.float32), np.float32([[0, 0], [1, 0], [0, -0.5]])
    rewards, ends = environments.judge_goals(1, achieved, desired)
    np.testing.assert_array_equal(rewards, np.float32([0, -1, -0.5]))
    assert ends is None


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (lambda self, achieved, desired, info: info["distance"], "X raised KeyError: 'distance'"),
        (lambda self, *_: np.inf, "compute_reward of X returned inf"),
    ],
)
def test_a_reward_that_is_none_is_an_error_in_a_sentence(reward, said):
    made, goals = type("Judging", (Reaching,), {"compute_reward": reward})(), np.zeros([1, 2])
    with pytest.raises(BadLevel, match=said):
        spaces.judge_goals("X", made, goals, goals)
