"""Normal distributions, with bounds and without, against SciPy in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from impala_mm.algorithms.parts.normals import (
    _EDGE,
    ClippedNormal,
    Normal,
    TanhNormal,
    decoupled_kl,
    log_ndtr,
)

SETTINGS = settings(max_examples=12, deadline=None)
MEANS = st.floats(-3, 3, width=16)
DEVIATIONS = st.floats(0.125, 2.5, width=16)
BOUNDS = np.array([-1.0]), np.array([1.0])


def _of(kind, mean, deviation):
    """Return the distribution of one number, in float64."""
    bounds = BOUNDS if kind is ClippedNormal else ()
    return kind(tf.constant([mean], tf.float64), tf.constant([deviation], tf.float64), *bounds)


def _log_prob(kind, mean, deviation, x):
    """Return the log-probability of each number in x, float64 [N]."""
    made = _of(kind, mean, deviation)
    return made.log_prob(tf.constant(np.reshape(x, [-1, 1]), tf.float64)).numpy()


def _expectation(kind, mean, deviation, f):
    """Return E f(x), with the probabilities of the bounds written out; f takes an array."""
    normal = stats.norm(mean, deviation)
    last = {Normal: np.inf, TanhNormal: np.arctanh(1 - _EDGE), ClippedNormal: 1.0}[kind]
    ends = np.array([mean - 12 * deviation, mean + 12 * deviation])
    grid = np.linspace(*np.clip(ends, -last + 1e-9, last - 1e-9), 4001)  # between the bounds
    x = np.tanh(grid) if kind is TanhNormal else grid
    inner = integrate.simpson(normal.pdf(grid) * f(x), grid)
    if kind is Normal:
        return inner
    beyond = np.array([normal.cdf(-last), normal.sf(last)])
    return inner + beyond @ f(np.array([-1.0, 1.0]))


@SETTINGS
@given(
    seed=st.integers(0, 2**32 - 1),
    leading=st.lists(st.integers(1, 3), max_size=2),
    size=st.integers(1, 3),
)
def test_normal_log_densities_entropies_and_divergences_are_scipys(seed, leading, size):
    rng = np.random.default_rng(seed)
    means, others, x = rng.normal(0, 2, (3, *leading, size))
    deviations, widths = np.exp(rng.normal(0, 1, (2, *leading, size)))
    made = Normal(tf.constant(means), tf.constant(deviations))
    exact = stats.norm(means, deviations)
    np.testing.assert_allclose(made.log_prob(x), exact.logpdf(x).sum(-1), rtol=1e-9)
    np.testing.assert_allclose(made.entropy(), exact.entropy().sum(-1), rtol=1e-9, atol=1e-12)
    divergence = np.log(widths / deviations) - 0.5
    divergence += (deviations**2 + (means - others) ** 2) / (2 * widths**2)
    kl = made.kl(Normal(tf.constant(others), tf.constant(widths)))
    np.testing.assert_allclose(kl, divergence.sum(-1), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(made.mode(), means)
    other = TanhNormal(tf.constant(others), tf.constant(widths))
    apart = decoupled_kl(TanhNormal(made.mean, made.deviation), other)
    for kl, mixed in zip(apart, ((others, deviations), (means, widths)), strict=True):
        assert kl.shape == means.shape, "of each number"
        due = made.kl(Normal(*map(tf.constant, mixed)))
        np.testing.assert_allclose(tf.reduce_sum(kl, -1), due, rtol=1e-9, atol=1e-12)


@SETTINGS
@given(mean=MEANS, deviation=DEVIATIONS, x=st.floats(-0.999, 0.999))
def test_between_the_bounds_the_densities_are_the_definitions(mean, deviation, x):
    normal = stats.norm(mean, deviation)
    (found,) = _log_prob(ClippedNormal, mean, deviation, x)
    assert found == pytest.approx(normal.logpdf(x), rel=1e-9)
    (found,) = _log_prob(TanhNormal, mean, deviation, x)
    assert found == pytest.approx(normal.logpdf(np.arctanh(x)) - np.log(1 - x**2), rel=1e-9)


@SETTINGS
@given(mean=st.floats(-20, 20, width=16), deviation=DEVIATIONS)
def test_at_a_bound_the_probability_is_that_of_all_numbers_beyond(mean, deviation):
    normal, last = stats.norm(mean, deviation), np.arctanh(1 - _EDGE)
    found = _log_prob(ClippedNormal, mean, deviation, [-1, 1])
    assert found == pytest.approx([normal.logcdf(-1), normal.logsf(1)], rel=1e-6, abs=1e-12)
    found = _log_prob(TanhNormal, mean, deviation, [-1, 1])
    exact = np.array([normal.logcdf(-last), normal.logsf(last)]) - np.log(_EDGE)
    assert found == pytest.approx(exact, rel=1e-6, abs=1e-9)


@SETTINGS
@given(
    kind=st.sampled_from([Normal, TanhNormal, ClippedNormal]),
    mean=MEANS,
    deviation=DEVIATIONS,
    other=MEANS,
    width=st.floats(0.5, 2.5, width=16),
)
def test_probabilities_add_up_and_entropy_and_divergence_are_expectations(
    kind, mean, deviation, other, width
):
    def mine(x):
        return _log_prob(kind, mean, deviation, x)

    def difference(x):
        return mine(x) - _log_prob(kind, other, width, x)

    assert _expectation(kind, mean, deviation, np.ones_like) == pytest.approx(1, abs=1e-6)
    made = _of(kind, mean, deviation)
    if kind is not TanhNormal:  # whose entropy is that of numbers that are not rounded
        entropy = _expectation(kind, mean, deviation, lambda x: -mine(x))
        assert float(made.entropy()) == pytest.approx(entropy, abs=1e-6)
    divergence = _expectation(kind, mean, deviation, difference)
    found = float(made.kl(_of(kind, other, width)))
    assert found == pytest.approx(divergence, rel=1e-5, abs=1e-5)
    assert found >= -1e-9


@pytest.mark.parametrize("mean", [-30.0, -8.0, 0.0, 0.7, 8.0])
@pytest.mark.parametrize("deviation", [0.05, 0.3, 2.0])
def test_a_tanhs_entropy_pulls_the_mean_back_however_far_it_is_beyond_a_bound(mean, deviation):
    normal = stats.norm(mean, deviation)
    u = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 40001)
    # The density of tanh(u) is that of u divided by the slope 1 - tanh(u)^2 = 1 / cosh(u)^2.
    exact = normal.entropy() - 2 * integrate.simpson(normal.pdf(u) * np.logaddexp(u, -u), u)
    exact += 2 * np.log(2)
    slope = -2 * integrate.simpson(normal.pdf(u) * np.tanh(u), u)
    center = tf.constant([mean], tf.float64)
    rng = np.random.default_rng(0)
    noise = tf.constant(rng.normal(size=[20000, 1]))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(center)
        made = TanhNormal(center, tf.constant([deviation], tf.float64))
        entropy, of_samples = made.entropy(), tf.reduce_mean(made.entropy(noise))
    assert float(entropy) == pytest.approx(exact, abs=2e-3)
    assert tape.gradient(entropy, center).numpy() == pytest.approx([slope], abs=2e-3)
    assert float(of_samples) == pytest.approx(exact, abs=0.05)
    assert tape.gradient(of_samples, center).numpy() == pytest.approx([slope], abs=0.03)


@pytest.mark.parametrize("kind", [TanhNormal, ClippedNormal])
@pytest.mark.parametrize("mean", [-50.0, -3.0, 0.2, 8.0, 1e4])
def test_samples_never_leave_the_bounds_and_nothing_becomes_infinite(kind, mean):
    tf.random.set_seed(1)
    bounds = BOUNDS if kind is ClippedNormal else ()
    center = tf.fill([2000, 1], tf.constant(mean))
    deviation = tf.fill([2000, 1], 2.0)
    with tf.GradientTape() as tape:
        tape.watch([center, deviation])
        made = kind(center, deviation, *bounds)
        drawn = tf.stop_gradient(made.sample())
        log_probs, entropy = made.log_prob(drawn), made.entropy()
    assert np.abs(drawn).max() <= 1
    assert np.abs(made.mode()).max() <= 1
    for tensor in (log_probs, entropy, *tape.gradient([log_probs, entropy], [center, deviation])):
        assert np.isfinite(tensor).all()


def test_a_number_with_one_bound_or_none_has_the_tail_that_it_has():
    low, high = np.array([0.0, -np.inf]), np.array([np.inf, np.inf])
    made = ClippedNormal(tf.constant([[-1.0, 0.5]]), tf.constant([[2.0, 3.0]]), low, high)
    free = stats.norm(0.5, 3)
    found = made.log_prob(tf.constant([[0.0, 7.0]])).numpy()
    np.testing.assert_allclose(found, [stats.norm(-1, 2).logcdf(0) + free.logpdf(7)], rtol=1e-5)
    half = stats.norm(-1, 2)
    entropy = -half.cdf(0) * half.logcdf(0)
    entropy -= integrate.quad(lambda x: half.pdf(x) * half.logpdf(x), 0, 30)[0]
    np.testing.assert_allclose(made.entropy(), [entropy + free.entropy()], rtol=1e-5)
    tf.random.set_seed(0)
    many = ClippedNormal(tf.fill([500, 2], -1.0), tf.fill([500, 2], 2.0), low, high).sample()
    assert many.numpy()[:, 0].min() == 0
    assert many.numpy()[:, 1].min() < -3


@SETTINGS
@given(x=st.floats(-40, 12))
def test_the_logarithm_of_the_normal_distribution_function_is_scipys(x):
    number = tf.Variable(x, dtype=tf.float64)
    with tf.GradientTape() as tape:
        found = log_ndtr(tf.convert_to_tensor(number))
    assert float(found) == pytest.approx(special.log_ndtr(x), rel=2e-6, abs=1e-15)
    slope = np.exp(stats.norm.logpdf(x) - special.log_ndtr(x))
    assert float(tape.gradient(found, number)) == pytest.approx(slope, rel=1e-5)
    assert np.isfinite(log_ndtr(tf.constant(np.float32(x))))
