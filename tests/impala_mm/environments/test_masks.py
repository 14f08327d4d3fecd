"""Masks of actions: where environments offer them, in which form, and what is wrong with them."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from counting import level
from faulty_levels import Sound
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from impala_mm.algorithms.parts import action_policies
from impala_mm.environments import masks, nests
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.spaces import read_actions
from impala_mm.environments.types import BadLevel


def actions_of(space):
    return read_actions("here", SimpleNamespace(action_space=space))


NESTED = Dict(a=Tuple([Discrete(2), Box(0, 1, (1,))]), b=MultiDiscrete([2, 3]))


@pytest.mark.parametrize(
    ("space", "raw", "expected"),
    [
        (Discrete(3), np.array([1, 0, 1], np.int8), [[1, 0, 1]]),
        (Discrete(3), [True, False, True], [[1, 0, 1]]),
        (MultiDiscrete([2, 3]), np.array([0, 1, 1, 0, 1], bool), [[0, 1, 1, 0, 1]]),
        (MultiDiscrete([2, 3]), (np.array([0, 1]), [1, 0, 1.0]), [[0, 1, 1, 0, 1]]),
        (MultiDiscrete([2, 2]), np.array([[0, 1], [1, 1]]), [[0, 1, 1, 1]]),
        (MultiDiscrete([[1, 2], [2, 1]]), (([1], [0, 1]), ([1, 0], [1])), [[1, 0, 1, 1, 0, 1]]),
        (MultiBinary(2), [[1, 0], [1, 1]], [[1, 0, 1, 1]]),
        (NESTED, {"a": ([0, 1], None), "b": [1, 0, 1, 1, 1]}, [[0, 1], [1, 0, 1, 1, 1]]),
        (NESTED, {"b": None}, [[1, 1], [1] * 5]),
    ],
)
def test_a_mask_is_read_in_every_form(space, raw, expected):
    actions = actions_of(space)
    read = masks.read_mask(actions, raw)
    assert [part.tolist() for part in read] == [[bool(x) for x in part] for part in expected]
    assert all(part.dtype == bool for part in read)
    specs = nests.flatten(actions.mask_specs)
    assert [tuple(spec.shape) for spec in specs] == [part.shape for part in read]


@pytest.mark.parametrize(
    ("space", "raw", "error"),
    [
        (Discrete(3), [1, 0], r"of shape \[2\], and Discrete\(3\) has the mask \[3\]"),
        (Discrete(2), ["a", "b"], "of str.*, which must be bool, or 0 and 1"),
        (Discrete(2), [0.5, 1.0], r"of float64 \[0.5, 1.0\], which must be"),
        (MultiDiscrete([2, 3]), ([1, 1], [1, 1]), r"of vectors of 2, 2, and .* choices 2, 3"),
        (NESTED, {"a": ([1], None)}, r"action mask\['a'\]\[0\] of shape \[1\]"),
        (NESTED, {"a": (None, [1])}, r"action mask\['a'\]\[1\] for Box"),
        (NESTED, {"c": [1]}, r"of the keys \['c'\] for an action of \['a', 'b'\]"),
        (NESTED, {"a": [None]}, r"action mask\['a'\] that is not a tuple of 2 masks"),
    ],
)
def test_a_mask_of_another_form_is_an_error(space, raw, error):
    with pytest.raises(ValueError, match=error):
        masks.read_mask(actions_of(space), raw)


@pytest.mark.parametrize("name", ["acting:Doors-v0", "acting:Stalls-v0"])
def test_a_policy_takes_only_what_the_mask_of_its_step_allows(name):
    """The games, each of which offers its mask at another place, break if one is not allowed."""
    environments = make_environments(name, 2, seed=0)
    spec, step = environments.spec, environments.reset()
    assert "action_mask" not in (spec.observation if isinstance(spec.observation, dict) else ())
    kind = action_policies.choose(spec.actions)
    for t in range(30):
        offered = [part.sum() for part in nests.flatten(step.mask)]
        inner = [each.unwrapped for each in environments._environments]
        assert sum(offered) == sum(mask.sum() for each in inner for mask in each.allowed), t
        mask = tf.nest.map_structure(tf.constant, step.mask)
        policy = kind.make(tf.random.normal([2, kind.num_parameters]), mask)
        drawn = policy.sample() if t % 2 else policy.mode()
        step = environments.step(tf.nest.map_structure(lambda part: part.numpy(), drawn))
        assert environments.faults == []
    environments.close()


def _faults_of(name, steps):
    environments = make_environments(name, 2, seed=0)
    environments.reset()
    for _ in range(steps):
        step = environments.step(np.zeros(2, np.int32))
    return [fault.text for fault in environments.faults], step, environments


@pytest.mark.parametrize(
    ("bug", "steps", "error"),
    [
        ("MaskInInfo", 1, 'no action mask in info["action_mask"]'),
        ("MaskInStep", 1, "and the first reset offered none"),
        ("MaskForbidsAll", 3, "the action mask after step 3 of the episode allows no choice of"),
    ],
)
def test_a_mask_that_is_wrong_in_a_step_breaks_its_environment(bug, steps, error):
    faults, step, environments = _faults_of(f"faulty_levels:{bug}-v0", steps)
    for number, fault in enumerate(faults):
        assert fault.startswith(f"environment {number} of faulty_levels:{bug}-v0: ValueError: ")
        assert error in fault
    assert step.fault.tolist() == [True, True]
    if not isinstance(step.mask, tuple):
        assert step.mask.all()
        step = environments.step(np.zeros(2, np.int32))
        assert step.mask.tolist() == [[True, False, True]] * 2


class Ends(Sound):
    """A game that allows nothing at its end, or offers no mask there."""

    def step(self, action):
        result = super().step(action)
        over = self.time == 3
        self.mask = np.array([not over, False, False])
        by_rule = self.ends == "terminated"
        return *result[:2], over and by_rule, over and not by_rule, {}

    def reset(self, *, seed=None, options=None):
        self.mask = np.array([False, True, False])
        return super().reset(seed=seed)

    def action_masks(self):
        assert self.ends == "truncated" or self.mask.any(), "asked after the end"
        return self.mask


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_a_mask_may_forbid_everything_at_an_episodes_end(ends):
    made = level(type("Ends", (Ends,), {"ends": ends}))
    faults, step, environments = _faults_of(made, 3)
    assert faults == []
    assert (step.terminated | step.truncated).all()
    assert step.mask.all()
    assert environments.step(np.zeros(2, np.int32)).mask.tolist() == [[False, True, False]] * 2


def test_a_wrapper_can_hide_a_mask():
    hides = type("Hides", (gymnasium.Wrapper,), {"action_masks": None})
    assert level_spec("acting:Rooms-v0").masks.shape == [9]
    assert level_spec(level(lambda: hides(gymnasium.make("acting:Rooms-v0")))).masks == ()


def test_masks_are_refused_where_they_cannot_be_kept():
    with pytest.raises(BadLevel, match=r"num_action_repeats is 4, and acting:Doors-v0 offers"):
        level_spec("acting:Doors-v0", num_action_repeats=4)
    with pytest.raises(BadLevel, match=r"Box\(\[3\], 0 to 1\) have no choices"):
        level_spec("faulty_levels:MaskOfNumbers-v0")
