"""V-trace against the paper's definition, a sum over products, written out here in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts import vtrace

THRESHOLDS = st.sampled_from([None, 0.0, 0.5, 1.0, 3.7])


def paper(log_rhos, discounts, rewards, values, bootstrap, rho_bar, pg_rho_bar, c_bar, lambda_):
    """Return (vs, pg_advantages) by equation 1 and section 4.2, term by term."""
    log_rhos, discounts, rewards, values, bootstrap = (
        np.asarray(x, np.float64) for x in (log_rhos, discounts, rewards, values, bootstrap)
    )

    def truncated(bar):
        with np.errstate(over="ignore"):
            rhos = np.exp(log_rhos)
        return rhos if bar is None else np.minimum(rhos, bar)

    steps = len(log_rhos)
    all_values = np.concatenate([values, bootstrap[None]])
    deltas = truncated(rho_bar) * (rewards + discounts * all_values[1:] - values)
    cs = lambda_ * truncated(c_bar)
    vs = np.concatenate([np.zeros_like(deltas), bootstrap[None] + np.zeros_like(deltas[:1])])
    for s in range(steps):
        vs[s] = values[s]
        for t in range(s, steps):
            vs[s] += np.prod((discounts * cs)[s:t], axis=0) * deltas[t]
    return vs[:-1], truncated(pg_rho_bar) * (rewards + discounts * vs[1:] - values)


def assert_close(got, expected):
    got = np.asarray(got)
    assert got.shape == expected.shape
    assert np.max(np.abs(got - expected)) <= 1e-5 * (1 + np.max(np.abs(expected)))


def drawn(seed, shape, spread):
    """Return inputs of V-trace: log-ratios of size `spread`, a third of the discounts 0."""
    rng = np.random.default_rng(seed)
    numbers = [
        rng.normal(0, spread, shape),
        rng.choice([0.0, 0.9, 0.99, 1.0], shape, p=[0.34, 0.22, 0.22, 0.22]),
        rng.normal(0, 3, shape),
        rng.normal(0, 3, shape),
        rng.normal(0, 3, shape[1:]),
    ]
    return [x.astype(np.float32) for x in numbers]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    batch=st.integers(1, 4),
    further=st.lists(st.integers(1, 3), max_size=2),
    spread=st.sampled_from([0.3, 1.0, 1e3]),
    bars=st.tuples(THRESHOLDS, THRESHOLDS, THRESHOLDS),
    lambda_=st.sampled_from([0.0, 0.95, 1.0]),
)
def test_vtrace_is_the_papers_definition(seed, steps, batch, further, spread, bars, lambda_):
    if spread > 1:  # without a threshold such ratios are infinite, here as in the paper
        bars = [1.0 if bar is None else bar for bar in bars]
    rho_bar, pg_rho_bar, c_bar = bars
    inputs = drawn(seed, (steps, batch, *further), spread)
    returns = vtrace.from_importance_weights(
        *inputs, rho_bar, pg_rho_bar, lambda_=lambda_, clip_c_threshold=c_bar
    )
    expected = paper(*inputs, rho_bar, pg_rho_bar, c_bar, lambda_)
    assert_close(returns.vs, expected[0])
    assert_close(returns.pg_advantages, expected[1])


@pytest.mark.parametrize(("size", "bar"), [(1e30, 0.0), (1e3, 1e4), (np.inf, 1.0)])
def test_log_ratios_of_any_size_give_finite_results(size, bar):
    log_rhos = np.float32([[size, -size], [-size, size], [size, size]])
    _, *rest = drawn(0, (3, 2), 1.0)
    returns = vtrace.from_importance_weights(log_rhos, *rest, bar, bar, clip_c_threshold=bar)
    expected = paper(log_rhos, *rest, bar, bar, bar, 1.0)
    assert_close(returns.vs, expected[0])
    assert_close(returns.pg_advantages, expected[1])


def test_no_gradient_flows_through_the_targets():
    inputs = [tf.Variable(x) for x in drawn(2, (4, 2), 1.0)]
    with tf.GradientTape(persistent=True) as tape:
        returns = vtrace.from_importance_weights(*inputs)
    for constant in returns:
        assert all(gradient is None for gradient in tape.gradient(constant, inputs))


def test_it_is_the_same_where_the_graph_does_not_know_the_shape():
    """A length known only at run time uses a loop; a known one is unrolled."""
    inputs = drawn(3, (5, 2, 3), 0.5)
    unknown = [tf.TensorSpec([None] * x.ndim, tf.float32) for x in inputs]
    looped = tf.function(vtrace.from_importance_weights, unknown, autograph=False)
    for got, expected in zip(looped(*inputs), vtrace.from_importance_weights(*inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_long_unroll_takes_the_loop_and_agrees_with_the_definition():
    inputs = drawn(4, (vtrace._LONGEST_WRITTEN_OUT + 1, 1), 0.5)
    returns = vtrace.from_importance_weights(*inputs)
    expected = paper(*inputs, 1.0, 1.0, 1.0, 1.0)
    assert_close(returns.vs, expected[0])
    assert_close(returns.pg_advantages, expected[1])


@pytest.mark.parametrize(
    ("which", "shape", "says"),
    [
        (0, (4,), "log_rhos must be"),
        (1, (4, 2, 1), "discounts must have rank 2"),
        (3, (4, 3), "values must begin with"),
        (4, (1,), "bootstrap_value must have the shape"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(which, shape, says):
    inputs = drawn(6, (4, 2), 1.0)
    inputs[which] = np.zeros(shape, np.float32)
    with pytest.raises(ValueError, match=says):
        vtrace.from_importance_weights(*inputs)
