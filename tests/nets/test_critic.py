"""Critics of an observation's features and an action."""

import numpy as np
import pytest
import tensorflow as tf

import nets
from impala_mm.environments.action_parts import Box, Discrete, MultiDiscrete
from impala_mm.environments.actions import ActionSpec
from nets.critic import Critics

STEER = ActionSpec(Box((2,), (-3.0, 0.0), (3.0, 10.0)))
SPACES = {
    "box": STEER,
    "discrete": ActionSpec(Discrete(4)),
    "nest": ActionSpec({"a": STEER.parts, "b": MultiDiscrete((2,), (3, 4), (0, 0))}),
}


@pytest.mark.parametrize("space", SPACES)
def test_two_critics_read_features_and_actions_of_any_space_and_differ(space):
    actions, random = SPACES[space], np.random.default_rng(0)
    critics = Critics(actions, 5, style=nets.Style((16, 16), "relu"))
    features = random.standard_normal([6, 5], np.float32)
    values = critics(features, actions.zeros(6))
    assert values.shape == (2, 6)
    assert np.abs(values[0] - values[1]).max() > 1e-3
    other = tf.nest.map_structure(lambda x: x + np.ones([], x.dtype), actions.zeros(6))
    assert np.abs(critics(features, other) - values).min() > 1e-6
    assert np.abs(critics(features + 1, actions.zeros(6)) - values).min() > 1e-6
    assert len(critics.trainable_variables) == 2 * 6
    unrolled = tf.nest.map_structure(lambda x: np.reshape(x, [3, 2, *x.shape[1:]]), other)
    of_unroll = critics(features.reshape(3, 2, 5), unrolled)
    np.testing.assert_array_equal(of_unroll, np.reshape(critics(features, other), [2, 3, 2]))


def test_values_have_a_gradient_for_the_action_by_which_a_policy_learns():
    critics = Critics(STEER, 3, count=1, style=nets.Style((8,)))
    action = tf.constant([[0.5, -0.5]])
    with tf.GradientTape() as tape:
        tape.watch(action)
        value = critics(tf.ones([1, 3]), action)
    assert (tape.gradient(value, action).numpy() != 0).all()
