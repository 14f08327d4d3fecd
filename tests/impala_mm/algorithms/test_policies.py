"""The distribution for each action space, and the head that computes its parameters."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import policies
from impala_mm.algorithms.distributions import Categorical
from impala_mm.algorithms.normals import ClippedNormal, TanhNormal
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec

BOUNDED = Box((2,), (-1.0, 0.0), (1.0, 5.0))
FREE = Box((2,), (-np.inf, 0.0), (np.inf, np.inf))
NESTED = ActionSpec({"b": (Discrete(3), BOUNDED), "a": MultiBinary((2, 2))})


@pytest.mark.parametrize(
    ("actions", "number", "shared"),
    [
        (ActionSpec(Discrete(5)), 5, 0),
        (ActionSpec(MultiDiscrete((2,), (2, 3), (0, 0))), 5, 0),
        (ActionSpec(MultiBinary((3,))), 3, 0),
        (ActionSpec(BOUNDED), 4, 2),
        (ActionSpec(Box((), (-1.0,), (1.0,))), 2, 1),
        (NESTED, 3 + 4 + 4, 2),
    ],
)
@pytest.mark.parametrize("deviation", policies.DEVIATIONS)
def test_the_head_has_the_parameters_and_the_policy_acts(actions, number, shared, deviation):
    tf.random.set_seed(0)
    distribution = policies.choose(actions, deviation=deviation)
    assert distribution.num_parameters == number
    head = policies.make_head(distribution)
    with tf.GradientTape() as tape:
        parameters = head(tf.random.normal([7, 10]))
        policy = distribution.make(parameters)
        drawn = policy.sample()
        tape.watch(parameters)
        loss = tf.reduce_sum(distribution.make(parameters).log_prob(drawn))
    assert parameters.shape == (7, number)
    for spec, action in zip(tf.nest.flatten(actions.specs), tf.nest.flatten(drawn), strict=True):
        assert (action.shape, action.dtype) == ((7, *spec.shape), spec.dtype)
    assert policy.log_prob(drawn).shape == policy.entropy().shape == (7,)
    assert policy.log_prob(policy.mode()).shape == (7,)
    assert np.isfinite(tape.gradient(loss, parameters)).all()
    equal = [i for i in range(number) if np.ptp(parameters.numpy()[:, i]) == 0]
    assert len(equal) == (shared if deviation == "shared" else 0)


def test_a_single_choice_has_the_head_that_it_always_had():
    """Checkpoints and the names of variables depend on it."""
    distribution = policies.choose(ActionSpec(Discrete(4)))
    head = policies.make_head(distribution)
    head(tf.zeros([1, 3]))
    assert isinstance(head, snt.Linear)
    assert [v.name for v in head.trainable_variables] == ["policy_logits/b:0", "policy_logits/w:0"]
    assert isinstance(distribution.make(tf.zeros([2, 4])), Categorical)


@pytest.mark.parametrize(
    ("box", "actions", "kind"),
    [
        ("tanh", BOUNDED, TanhNormal),
        ("clipped", BOUNDED, ClippedNormal),
        ("tanh", FREE, ClippedNormal),
    ],
)
def test_a_box_has_the_policy_that_was_asked_for_if_its_bounds_allow_it(box, actions, kind):
    made = policies.choose(ActionSpec(actions), box).make(tf.zeros([3, 4]))
    assert isinstance(made, kind)
    np.testing.assert_allclose(made.deviation, np.full([3, 2], 0.6), rtol=1e-6)
    if kind is ClippedNormal and actions is FREE:
        assert made.low.tolist() == [-np.inf, 0]
    with pytest.raises(ValueError, match="'beta' is none of clipped, tanh"):
        policies.choose(ActionSpec(actions), "beta")


def test_deviations_stay_above_zero():
    made = policies.choose(ActionSpec(BOUNDED)).make(tf.constant([[0.0, 0, -1e9, 1e9]]))
    low, high = made.deviation.numpy()[0]
    assert low == pytest.approx(0.02)
    assert np.isfinite(high)
