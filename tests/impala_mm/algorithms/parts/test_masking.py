"""Masked policies against SciPy in float64, and the choices of algorithms that compare values."""

import in_process
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from impala_by_numpy import impala_loss
from scipy import special

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms import registry
from impala_mm.algorithms.impala import algorithm as impala
from impala_mm.algorithms.parts import action_policies, masking
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec, UnsuitableActions
from impala_mm.environments.make import level_spec, make_environments

SPACES = {
    "Discrete": Discrete(5),
    "even": MultiDiscrete((2,), (3, 3), (0, 0)),
    "uneven": MultiDiscrete((2, 2), (2, 4, 1, 3), (0, 0, 0, 0)),
    "MultiBinary": MultiBinary((3,)),
    "nested": {
        "a": (Discrete(3), Box((1,), (-1.0,), (1.0,))),
        "b": MultiDiscrete((2,), (2, 3), (0, 0)),
    },
}


def _random_mask(rng, leading, choices):
    """Return masks [..., sum(choices)] that allow something of each element."""
    parts = []
    for n in choices:
        mask = rng.random((*leading, n)) < 0.5
        np.put_along_axis(mask, rng.integers(n, size=(*leading, 1)), True, -1)
        parts.append(mask)
    return np.concatenate(parts, -1)


def _log_softmax(logits, mask):
    return special.log_softmax(np.where(mask, logits, -np.inf), -1)


@pytest.mark.parametrize("space", ["Discrete", "even", "uneven", "MultiBinary"])
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    leading=st.lists(st.integers(1, 3), max_size=2),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_a_masked_policy_is_the_softmax_of_what_is_allowed(space, seed, leading, spread):
    rng, part = np.random.default_rng(seed), SPACES[space]
    kind = action_policies.choose(ActionSpec(part))
    mask = _random_mask(rng, leading, part.choices)
    given_, others = rng.normal(0, spread, (2, *leading, kind.num_parameters))
    parameters = tf.Variable(given_)
    with tf.GradientTape(persistent=True) as tape:
        policy = kind.make(tf.convert_to_tensor(parameters), tf.constant(mask))
        other = kind.make(tf.constant(others), tf.constant(mask))
        drawn, mode = policy.sample(), policy.mode()
        values = policy.log_prob(drawn), policy.entropy(), policy.kl(other)
    if space == "MultiBinary":  # the logit of 1 against a logit of 0
        given_, others = (np.stack([0 * x, x], -1).reshape(*leading, 6) for x in (given_, others))
    ends = np.cumsum(part.choices)[:-1]
    apart = [np.split(x, ends, -1) for x in (given_, others, mask)]
    due = [0.0, 0.0, 0.0]
    flat_drawn, flat_mode = (np.reshape(x, (*leading, len(part.choices))) for x in (drawn, mode))
    for k, (logits, theirs, allowed) in enumerate(zip(*apart, strict=True)):
        log_probs, their_log_probs = _log_softmax(logits, allowed), _log_softmax(theirs, allowed)
        chosen = flat_drawn[..., k, None]
        assert np.take_along_axis(allowed, chosen, -1).all()
        assert (flat_mode[..., k] == log_probs.argmax(-1)).all()
        probs, finite = np.exp(log_probs), np.where(allowed, log_probs, 0)
        due[0] += np.take_along_axis(log_probs, chosen, -1)[..., 0]
        due[1] += -np.sum(probs * finite, -1)
        due[2] += np.sum(probs * (finite - np.where(allowed, their_log_probs, 0)), -1)
    for value, expected in zip(values, due, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)
        assert np.isfinite(tape.gradient(value, parameters, unconnected_gradients="zero")).all()


def test_a_nest_has_the_mask_of_each_part():
    actions = ActionSpec(SPACES["nested"])
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


def test_without_masks_the_graph_is_what_it_was():
    """Environments without masks pay nothing."""
    kind = action_policies.choose(ActionSpec(Discrete(4)))
    logits = tf.random.normal([3, 4])
    assert kind.make(logits).logits is logits
    assert masking.allowed_only(logits, ()) is logits
    assert masking.before(()) == masking.allow_all(tf.constant([True]), ()) == ()


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
    rng = np.random.default_rng(0)
    parameters = tf.Variable(rng.normal(size=(4, 2, 3)).astype(np.float32))
    inputs = {
        "values": rng.normal(size=(4, 2)).astype(np.float32),
        "actions": np.array([[0, 0], [1, 0], [2, 0], [1, 0]], np.int32),
        "rewards": np.ones((4, 2), np.float32),
        "terminated": np.zeros((4, 2), bool),
        "first": np.zeros((4, 2), bool),
        "behaviour_log_probs": np.full((4, 2), -0.5, np.float32),
        "weight": np.float32([1, 0]),
    } | changes
    with tf.GradientTape() as tape:
        result = impala_loss(
            parameters=tf.identity(parameters),
            masks=masks,
            discounting=0.5,
            baseline_cost=0.5,
            entropy_cost=0.01,
            **inputs,
        )
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
        match=r"^acting:Doors-v0 offers masks of its actions, and the algorithm does not declare "
        r"that it reads them: let it read Entry.mask and give its class the attribute masks = True",
    ):
        registry.make_algorithm(Config(), spec)
    assert registry.make_algorithm(Config(), spec._replace(masks=()))
