"""Advantages and value targets against their definitions, written out step by step in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts import advantages, losses
from impala_mm.algorithms.parts.advantage_settings import AdvantageSettings

GAMMA = 0.9


def drawn(seed, t, b):
    """Return entries [T+1, B] and ratios [T, B] with ends of both kinds; column 0 is padding.

    A reset follows each end but a third of the terminations, as after a lost life in Atari.
    """
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, t + 1, b)) < 0.2
    terminated[truncated] = False
    ended = truncated | (terminated & (rng.random((t + 1, b)) < 2 / 3))
    first = np.concatenate([rng.random((1, b)) < 0.2, ended[:-1]])
    terminated[first] = truncated[first] = False
    numbers = rng.normal(0, 3, (2, t + 1, b)).astype(np.float32)
    weight = np.where(np.arange(b) == 0, 0, rng.random(b) + 0.1).astype(np.float32)
    ratios = rng.normal(0, 1, (t, b)).astype(np.float32)
    return numbers[0], numbers[1], terminated, first, weight, ratios


def estimated(estimator, inputs):
    """Return the estimates of an estimator, called as an algorithm calls it."""
    rewards, values, terminated, first, weight, log_ratios = map(tf.constant, inputs)
    steps = losses.transitions(
        values=values, actions=rewards, rewards=rewards, terminated=terminated, first=first,
        behaviour_log_probs=rewards, weight=weight, discounting=GAMMA,
    )  # fmt: skip
    found = estimator(steps, values, log_ratios)
    assert all(part.dtype == tf.float32 and part.shape == log_ratios.shape for part in found)
    return [part.numpy() for part in found]


def chain(inputs, t, b):
    """Yield (entry k, one-step error, whether the return ends) along the episode from entry t."""
    rewards, values, terminated, first = (np.float64(x[:, b]) for x in inputs[:4])
    for k in range(t, len(rewards) - 1):
        if first[k + 1]:
            return
        error = rewards[k + 1] + GAMMA * (1 - terminated[k + 1]) * values[k + 1] - values[k]
        yield k, error
        if terminated[k + 1]:
            return


def live(inputs, t, b):
    return not inputs[3][t + 1, b] and inputs[4][b] > 0


def generalised(inputs, t, b, lambda_):
    """Return the advantage as the sum of discounted one-step errors, and V + it."""
    total = sum((GAMMA * lambda_) ** (k - t) * error for k, error in chain(inputs, t, b))
    return total, inputs[1][t, b] + total


def n_step(inputs, t, b, n):
    """Return what the n rewards after entry t and the value behind them exceed V_t by."""
    rewards, values, terminated, first = (x[:, b] for x in inputs[:4])
    total, discount = 0.0, 1.0
    for k in range(t, min(t + n, len(rewards) - 1)):
        if first[k + 1]:
            break  # truncated: the value of its last observation, entry k
        total += discount * np.float64(rewards[k + 1])
        discount *= GAMMA * (not terminated[k + 1])
        if terminated[k + 1]:
            break
    else:
        k = min(t + n, len(rewards) - 1)
    total += discount * np.float64(values[k]) if discount else 0.0
    return total - values[t], total


def v_trace(inputs, t, b, lambda_, rho_bar, c_bar):
    """Return the advantage and the target of V-trace, by the paper's sum over products."""

    def target(t):
        total, trace = np.float64(inputs[1][t, b]), 1.0
        for k, error in chain(inputs, t, b):
            rho = np.exp(np.float64(inputs[5][k, b]))
            total += trace * min(rho, rho_bar) * error
            trace *= GAMMA * lambda_ * min(rho, c_bar)
        return total

    _, error = next(chain(inputs, t, b))
    over, end = inputs[2][t + 1, b], t + 1 == len(inputs[5])
    following = inputs[1][t + 1, b] if end else target(t + 1)
    bootstrap = np.float64(following) - inputs[1][t + 1, b]
    return error + (0 if over else GAMMA * bootstrap), target(t)


def assert_defined(estimator, inputs, defined):
    """Compare the estimates with `defined(inputs, t, b)`, and with nothing where not live."""
    found = estimated(estimator, inputs)
    for (t, b), _ in np.ndenumerate(found[0]):
        expected = defined(inputs, t, b) if live(inputs, t, b) else (0, inputs[1][t, b])
        got = [part[t, b] for part in found]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=5e-5, err_msg=f"{t}, {b}")


CASES = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(2, 4))


@settings(max_examples=15, deadline=None)
@given(case=CASES, lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_generalised_advantages_are_the_discounted_sum_of_errors(case, lambda_):
    assert_defined(
        advantages.GeneralisedAdvantages(lambda_),
        drawn(*case),
        lambda *of: generalised(*of, lambda_),
    )


@settings(max_examples=15, deadline=None)
@given(case=CASES, n=st.integers(1, 14))
def test_n_step_returns_are_n_rewards_and_a_value(case, n):
    assert_defined(advantages.NStep(n), drawn(*case), lambda *of: n_step(*of, n))


@settings(max_examples=15, deadline=None)
@given(
    case=CASES,
    lambda_=st.sampled_from([0.0, 0.9, 1.0]),
    bars=st.tuples(*[st.sampled_from([0.3, 1.0, 2.5])] * 2),
)
def test_v_trace_is_the_papers_sum_over_products(case, lambda_, bars):
    assert_defined(
        advantages.VTrace(lambda_, *bars), drawn(*case), lambda *of: v_trace(*of, lambda_, *bars)
    )


@pytest.mark.parametrize("name", ["gae", "vtrace", "n_step"])
def test_they_are_constants_in_a_graph_and_ignore_what_padding_holds(name):
    inputs = drawn(3, 6, 3)
    estimator = advantages.make(AdvantageSettings(advantages=name, n_steps=2))
    expected = estimated(estimator, inputs)
    changed = [array.copy() for array in inputs]
    changed[0][:, 0], changed[5][:, 0] = np.nan, np.inf
    for ours, theirs in zip(estimated(estimator, changed), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)

    @tf.function(autograph=False)
    def gradient(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            steps = losses.transitions(
                values=values, actions=values, rewards=inputs[0], terminated=inputs[2],
                first=inputs[3], behaviour_log_probs=values, weight=tf.constant(inputs[4]),
                discounting=GAMMA,
            )  # fmt: skip
            found = estimator(steps, values, tf.constant(inputs[5]))
            total = tf.reduce_sum(tf.stack(found))
        return found, tape.gradient(total, values)

    found, slope = gradient(tf.constant(inputs[1]))
    assert slope is None
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "made"),
    [
        ({}, advantages.GeneralisedAdvantages(0.95)),
        ({"gae_lambda": 0.5}, advantages.GeneralisedAdvantages(0.5)),
        ({"advantages": "n_step", "n_steps": 7}, advantages.NStep(7)),
        (
            {"advantages": "vtrace", "vtrace_lambda": 0.8, "clip_rho_threshold": 2.0,
             "clip_c_threshold": 1.5},
            advantages.VTrace(0.8, 2.0, 1.5),
        ),
    ],
)  # fmt: skip
def test_the_flags_make_the_estimator(flags, made):
    assert advantages.make(AdvantageSettings(**flags)) == made
    assert type(advantages.make(AdvantageSettings(**flags))) is type(made)
