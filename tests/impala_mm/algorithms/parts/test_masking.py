"""Masks: nests of them, what the learner computes, and algorithms that compare values."""

import in_process
import numpy as np
import pytest
import tensorflow as tf
from impala_by_numpy import impala_loss

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.impala import algorithm as impala
from impala_mm.algorithms.make import make_algorithm
from impala_mm.algorithms.parts import action_policies, masking
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.action_parts import Box, Discrete, MultiDiscrete
from impala_mm.environments.actions import ActionSpec, UnsuitableActions
from impala_mm.environments.make import level_spec, make_environments
from tests.impala_mm.algorithms.parts.test_losses import COSTS, unrolls

NEST = {
    "a": (Discrete(3), Box((1,), (-1.0,), (1.0,))),
    "b": MultiDiscrete((2,), (2, 3), (0, 0)),
}


def test_a_nest_has_the_mask_of_each_part():
    actions = ActionSpec(NEST)
    kind = action_policies.choose(actions)
    mask = {
        "a": (tf.constant([[False, True, False]]), ()),
        "b": tf.constant([[True, False, False, False, True]]),
    }
    tf.nest.assert_same_structure(mask, actions.mask_specs)
    for policy in (kind.make(tf.zeros([1, kind.num_parameters]), mask) for _ in range(5)):
        drawn = policy.sample()
        assert (drawn["a"][0].numpy(), drawn["b"].numpy().tolist()) == ([1], [[0, 2]])
    spread = kind.make(tf.zeros([1, kind.num_parameters])).entropy() - policy.entropy()
    np.testing.assert_allclose(spread, [np.log(3) + np.log(2) + np.log(3)], rtol=1e-5)


def test_values_are_compared_among_what_is_allowed():
    tf.random.set_seed(0)
    values = tf.constant([[5.0, 1.0, 2.0], [5.0, 1.0, 2.0]])
    mask = tf.constant([[False, True, True], [False, False, False]])  # a padded row
    assert masking.best_choice(values, mask).numpy().tolist() == [2, 0]
    assert masking.best_choice(values, ()).numpy().tolist() == [0, 0]
    assert tf.reduce_max(masking.allowed_only(values, mask), -1).numpy().tolist() == [2, 5]
    drawn = masking.random_choice(tf.zeros([4000, 3]), tf.tile(mask[:1], [4000, 1])).numpy()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 4000, [0, 0.5, 0.5], atol=0.04)
    assert set(masking.random_choice(tf.zeros([100, 3]), ()).numpy()) == {0, 1, 2}


def _loss(masks, **changes):
    """Return losses and gradients of four entries and two unrolls, the second of weight 0."""
    inputs = unrolls(0, 3, 2, resets=0) | changes
    inputs |= {"actions": np.int32([[0, 0], [1, 0], [2, 0], [1, 0]]), "weight": np.float32([1, 0])}
    parameters = tf.Variable(inputs["parameters"])
    with tf.GradientTape() as tape:
        inputs["parameters"] = tf.identity(parameters)
        result = impala_loss(**inputs, masks=masks, **COSTS)
    return np.array(result), tape.gradient(result.total, parameters).numpy()


def test_the_learner_computes_the_policy_that_acted():
    """The mask of entry t is of the action in entry t+1."""
    mask = np.ones((4, 2, 3), bool)
    mask[0, 0] = [False, True, True]  # of the action 1 in entry 1
    mask[1, 0] = [False, False, True]  # of the action 2 in entry 2, which was the only one
    mask[:, 1] = False  # padding
    result, gradient = _loss(tf.constant(mask))
    assert np.isfinite(result).all()
    assert np.isfinite(gradient).all()
    assert gradient[0, 0, 0] == 0
    assert (gradient[0, 0, 1:] != 0).all()
    assert (gradient[1] == 0).all(), "there was no choice"
    assert (gradient[2, 0] != 0).all()
    assert (gradient[:, 1] == 0).all()
    assert (_loss(())[0] == _loss(tf.ones([4, 2, 3], tf.bool))[0]).all()


def test_a_mask_before_a_reset_is_ignored():
    first = np.zeros((4, 2), bool)
    first[2] = True
    mask = np.ones((4, 2, 3), bool)
    mask[1] = [False, True, True]  # after a truncation; the entry of the reset holds an action of 0
    result, gradient = _loss(tf.constant(mask), first=first)
    assert np.isfinite(result).all()
    assert np.isfinite(gradient).all()
    assert (result == _loss((), first=first)[0]).all()


def test_actors_record_the_mask_by_which_they_chose():
    """The actor's network is the learner's here, so that both policies are the same."""
    config = Config(level_name="acting:Rooms-v0", unroll_length=12, agent_name="MLPAgent")
    algorithm = in_process.make(config)
    played = UnrollPlayer(algorithm, [(make_environments(config.level_name, 3, seed=0), 3)]).play()
    entries = in_process.decoded(UnrollCodec(algorithm.unroll), played).unrolls
    for t in range(12):
        chosen = tf.one_hot(entries.action[t + 1] + [0, 2, 5], 9, True, False)
        allowed = entries.mask[t] | ~tf.reduce_any(chosen, 1) | entries.first[t + 1, :, None]
        assert np.all(allowed)
    assert not np.all(entries.mask)
    metrics = in_process.updater(algorithm, config, traced=False)(played, over=0.0)
    assert abs(metrics["off_policyness"]) < 1e-4
    assert metrics["grad_norm"] > 0


def test_an_algorithm_that_reads_no_masks_is_refused(monkeypatch):
    monkeypatch.setattr(impala.Impala, "masks", False)
    spec = level_spec("acting:Doors-v0")
    with pytest.raises(
        UnsuitableActions,
        match=r"^acting:Doors-v0 offers masks .* give its class the attribute masks = True",
    ):
        make_algorithm(Config(), spec)
    assert make_algorithm(Config(), spec._replace(masks=()))
