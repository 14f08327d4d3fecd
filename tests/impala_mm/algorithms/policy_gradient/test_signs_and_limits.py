"""Signs and limits that other programs of this family got wrong, each by its effect."""

import math

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.feature_settings import RegulariserSettings
from impala_mm.algorithms.parts import action_policies, targets
from impala_mm.algorithms.policy_gradient.variants import PPO
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from tests.helpers.regularised import Regularised
from tests.impala_mm.algorithms.policy_gradient import test_policy_gradient as family


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((), [7.0, 1.0, 0.1, 1e-30, 3e38]),
        ((1.0,), [7.0, 1.0, 0.1, 1e-30, 3e38]),
        ((0.25,), [4.0, -0.5, 0.775, 1.5, 7.5e37]),
        ((0.0,), [3.0, -1.0, 1.0, 2.0, 9.0]),
    ],
)
def test_a_share_of_1_copies_a_target_network_exactly_and_0_leaves_it(shares, expected):
    target, online = (
        tf.Variable([3.0, -1.0, 1.0, 2.0, 9.0]),
        tf.Variable([7.0, 1, 0.1, 1e-30, 3e38]),
    )
    targets.follow([target], [online], *shares)
    np.testing.assert_array_equal(target, np.float32(expected))


@pytest.mark.parametrize(
    ("ratio", "advantage", "learns"),
    [(0.79, -1.0, False), (0.81, -1.0, True), (0.82, 1.0, True), (1.19, 1.0, True),
     (1.21, 1.0, False), (0.5, 1.0, True), (1.5, -1.0, True)],
)  # fmt: skip
def test_ppos_lower_limit_is_1_minus_clip(ratio, advantage, learns):
    """It is 0.8 for a clip of 0.2, and not 1 / 1.2 = 0.833."""
    algorithm, _ = family._made(clip=0.2)
    assert isinstance(algorithm, PPO)
    log_ratio = tf.Variable([[math.log(ratio)]])
    with tf.GradientTape() as tape:
        terms = algorithm._policy_terms(tf.identity(log_ratio), tf.constant([[advantage]]))
    slope = float(tape.gradient(terms.losses, log_ratio)[0, 0])
    assert slope == pytest.approx(-ratio * advantage if learns else 0.0)


@pytest.mark.parametrize(
    ("name", "raises"),
    [("entropy", True), ("kl_pi_mu", False), ("kl_mu_pi", False), ("kl_ref_pi", False)],
)
@pytest.mark.parametrize("with_target", [False, True])
def test_a_step_along_the_loss_raises_the_entropy_and_lowers_divergences(name, raises, with_target):
    flag = {f"target_{name}": 1.3 if raises else 0.0} if with_target else {f"{name}_cost": 1.0}
    made = Regularised(RegulariserSettings(**{"entropy_cost": 0.0} | flag), ActionSpec(Discrete(4)))
    rng = np.random.default_rng(0)
    parameters, mu, reference = rng.normal(size=(3, 5, 2, 4)).astype("f")
    live = np.ones((5, 2), bool)

    def measure(given):
        return made.measure(
            action_policies.categorical(given), action_policies.categorical, mu, reference, live,
            np.ones(2, "f"), "sum",
        )  # fmt: skip

    given = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(given)
        before = measure(given)
    after = measure(given - 0.1 * tape.gradient(before.loss, given))
    grows = float(after.totals[name]) > float(before.totals[name])
    assert grows == raises


def test_rewards_and_returns_hold_no_regulariser():
    """The regularisers' costs change no advantage and no value target."""
    found = []
    for cost in (0.0, 5.0):
        algorithm, exchange = family._made(entropy_cost=cost, kl_mu_pi_cost=cost)
        goals, _ = algorithm._goals(family._tensors(family._batch(algorithm)), exchange)
        found.append(goals)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
@pytest.mark.parametrize(
    "name", ["target_entropy", "target_kl_pi_mu", "target_kl_mu_pi", "target_kl_ref_pi"]
)
def test_a_target_of_0_on_the_command_line_is_a_target(algorithm, name):
    given = ["experiment.py", f"--algorithm={algorithm}", f"--{name}=0"]
    (config,), _ = command_line.parse(given, "", Config)
    made = Regularised(config, ActionSpec(Discrete(4)))
    assert len(made.variables) == 1
    assert made.variables[0].name.startswith(f"log_{name.removeprefix('target_')}_cost")
