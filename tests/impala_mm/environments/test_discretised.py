"""Choices in place of a Box's numbers: which numbers they stand for, and what has none."""

import gymnasium
import numpy as np
import pytest
from counting import level
from gymnasium.spaces import Box

from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.types import BadLevel


class Echo(gymnasium.Env):
    """An environment whose observation is its last action."""

    def __init__(self, low, high, dtype=np.float32):
        self.action_space = Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
        self.observation_space = Box(-100, 100, self.action_space.shape, np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.action_space.shape), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return action.astype(np.float64), 0.0, False, False, {}


def _played(name, choices, **options):
    """Return the numbers that an environment receives for each of these choices."""
    environments = make_environments(name, 1, seed=0, **options)
    environments.reset()
    seen = [environments.step(np.array([c])).observation[0].tolist() for c in choices]
    environments.close()
    assert environments.faults == []
    return seen


def test_one_number_is_one_choice_and_several_are_several():
    one, two = (
        level(lambda **_: Echo([-2], [4])),
        level(lambda **_: Echo([[-2], [0]], [[2], [10]])),
    )
    lin = {"discretization": "lin", "n_actions_per_dim": 4}
    assert _played(one, range(4), **lin) == [[-2], [0], [2], [4]]
    options = {"discretization": "lin", "n_actions_per_dim": 5}
    assert level_spec(one, **options).actions.discrete == 5
    assert level_spec(two, **options).actions.describe() == "MultiDiscrete([5, 5])"
    assert _played(two, [[0, 4], [3, 1]], **options) == [[[-2], [10]], [[1], [2.5]]]
    whole = level(lambda **_: Echo([0], [9], np.int64))
    assert _played(whole, range(5), **options) == [[0], [2], [4], [7], [9]]


def test_worker_processes_take_the_same_choices():
    options = {"discretization": "log", "n_actions_per_dim": 3}
    seen = [_played("Pendulum-v1", [[0], [1], [2]], workers=n, **options) for n in (0, 1)]
    assert seen[0] == seen[1]


def test_log_has_the_middle_and_distances_that_grow_by_equal_factors():
    options = {"discretization": "log", "n_actions_per_dim": 7, "action_ratio": 4.0}
    found = np.array(_played(level(lambda **_: Echo([0], [20])), range(7), **options))[:, 0]
    np.testing.assert_allclose(found, [0, 5, 7.5, 10, 12.5, 15, 20])


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        (None, {}, "CartPole-v1: --discretization=lin makes choices of a Box"),
        (([-np.inf], [1]), {}, "--discretization=lin needs bounds"),
        (
            *(([-1], [1]), {"discretization": "log", "n_actions_per_dim": 4}),
            "--n_actions_per_dim=4: --discretization=log needs an odd number",
        ),
    ],
)
def test_what_has_no_such_choices_is_refused_in_a_sentence(made, options, said):
    name = level(lambda **_: Echo(*made)) if made else "CartPole-v1"
    with pytest.raises(BadLevel, match=said):
        level_spec(name, **{"discretization": "lin"} | options)
