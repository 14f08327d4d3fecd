"""A traced function as NumPy computes it returns what TensorFlow's own computation returns."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from impala_mm.actor.numpy_function import NumpyFunction
from impala_mm.data.numpy_translation import Untranslatable

FLOATS, WHOLE, FLAGS = (tf.TensorSpec([4, 6], dtype) for dtype in (tf.float32, tf.int32, tf.bool))
TABLE = tf.Variable(np.arange(12, dtype=np.float32).reshape(6, 2))
# Too many to be in the trace.
MANY = tf.constant(np.linspace(0, 1, 600, dtype=np.float32).reshape(6, 100))

# Functions of float numbers [4, 6], whole numbers from 0 to 5 and flags.
FUNCTIONS = {
    # A power of two divides exactly: another rounding of a large angle is another cosine.
    "abs": lambda x, n, b: [tf.abs(x), tf.cos(x / 16)],
    "arithmetic": lambda x, n, b: [x + 2.0 * x[::-1] - x / 3.0, -x, n + n * n - 1],
    "comparisons": lambda x, n, b: [x > 0, x >= x[0], x < 0, x <= x[0], tf.equal(n, 3)],
    "logic": lambda x, n, b: [b & (x > 0), b | (x > 0), ~b],
    "exponents": lambda x, n, b: [
        tf.exp(x / 14), tf.square(x), tf.pow(0.4, tf.cast(n, tf.float32)),
    ],
    "roots": lambda x, n, b: [f(tf.abs(x) + 0.1) for f in (tf.sqrt, tf.math.rsqrt, tf.math.log)],
    "activations": lambda x, n, b: [
        f(x) for f in (tf.tanh, tf.sigmoid, tf.nn.relu, tf.nn.elu, tf.nn.softplus, tf.nn.swish)
    ],
    "softmax": lambda x, n, b: [tf.nn.softmax(x), tf.sign(x), tf.math.squared_difference(x, 1.0)],
    "clipping": lambda x, n, b: [tf.clip_by_value(x, -1.0, 1.0), tf.maximum(n, 2)],
    "choice": lambda x, n, b: [tf.where(b, x, 0.0), tf.where(b[:, :1], x, x[0])],
    "reductions": lambda x, n, b: [
        tf.reduce_sum(n, 1), tf.reduce_sum(x), tf.reduce_mean(x, [0, 1], keepdims=True),
        tf.reduce_max(x, 0), tf.reduce_min(n, -1), tf.reduce_any(b, 1), tf.reduce_all(b, 1),
        tf.argmax(x, -1, tf.int32), tf.argmax(x, 0),
    ],
    "shapes": lambda x, n, b: [
        tf.reshape(x, [2, 3, -1]), x[:, None], tf.squeeze(x[:, :1], -1), tf.transpose(x),
        tf.broadcast_to(x[0], [2, 6]), tf.fill([2, 3], n[0, 0]), tf.ensure_shape(x, [4, 6]),
        tf.expand_dims(x, 1), tf.zeros_like(x) + tf.cast(tf.shape(x)[0], tf.float32),
    ],
    "slices": lambda x, n, b: [
        x[1], x[:, 2], x[-1], x[:, -2:], x[1:3, ::2], x[..., 1:], x[:, ::-1], x[None, :, 3, None],
    ],
    "parts": lambda x, n, b: [*tf.split(x, 3, 1), *tf.split(n, [1, 3], 0), *tf.split(x, [2, 4], 1)],
    "one part": lambda x, n, b: [*tf.split(x, 1, 1), *tf.split(x, [4], 0)],
    "joins": lambda x, n, b: [tf.concat([x, tf.cast(n, tf.float32)], -1), tf.stack([n, n], 1)],
    "casts": lambda x, n, b: [tf.cast(3 * x, tf.int32), tf.cast(b, tf.float32)],
    "one-hot": lambda x, n, b: [tf.one_hot(n - 1, 4), tf.one_hot(n[0], 6)],
    "rows": lambda x, n, b: [
        tf.gather(x, n[0], axis=1), tf.gather(TABLE, n), MANY[2],
        tf.gather(x, n[:, 0], batch_dims=1),
    ],
    "branches": lambda x, n, b: [
        tf.cond(b[0, 0], lambda: x + 1, lambda: -x), tf.function(lambda y: 2 * y + TABLE[0, 0])(x),
    ],
    "bytes": lambda x, n, b: [
        tf.bitcast(n, tf.uint8),
        tf.bitcast(tf.reshape(tf.cast(n, tf.uint8), [6, 4]), tf.int32),
    ],
    "layers": lambda x, n, b: [
        tf.nn.bias_add(x @ TABLE, TABLE[0]), tf.tanh(x @ MANY), tf.matmul(x, x, transpose_b=True),
    ],
}  # fmt: skip


def _trace(function, *specs):
    """Return NumPy's and TensorFlow's computation of a function."""
    concrete = tf.function(
        lambda *given: tf.nest.flatten(function(*given)), autograph=False
    ).get_concrete_function(*specs)
    return NumpyFunction(concrete, np.random.default_rng(0)), concrete


@pytest.fixture(scope="module")
def traced():
    """Return a function that traces one of FUNCTIONS, once."""
    known = {}

    def trace(name):
        if name not in known:
            known[name] = _trace(FUNCTIONS[name], FLOATS, WHOLE, FLAGS)
        return known[name]

    return trace


@pytest.mark.parametrize("name", FUNCTIONS)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.0, 0.01, 1.0, 30.0, 200.0]))
@settings(max_examples=20, deadline=None)
def test_operations_return_what_tensorflow_returns(traced, name, seed, scale):
    by_numpy, by_tensorflow = traced(name)
    random = np.random.default_rng(seed)
    x = (scale * random.standard_normal([4, 6])).astype(np.float32)
    given = x, random.integers(6, size=[4, 6], dtype=np.int32), random.random([4, 6]) < 0.5
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = by_numpy(*given)
    for ours, theirs in zip(found, by_tensorflow(*map(tf.constant, given)), strict=True):
        assert (np.shape(ours), np.asarray(ours).dtype) == (theirs.shape, theirs.numpy().dtype)
        # A sum may be close to 0 while its terms are large: these determine the rounding.
        size = max(1.0, np.abs(theirs.numpy().astype(np.float64)).max())
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6 * size)


def test_variables_have_the_values_that_were_read_last():
    by_numpy, _ = _trace(lambda x: [x @ TABLE, 2.0 * TABLE], FLOATS)
    x, before = np.ones([4, 6], np.float32), TABLE.numpy()
    TABLE.assign_add(tf.ones([6, 2]))
    np.testing.assert_allclose(by_numpy(x)[0], x @ before)
    by_numpy.read_variables()
    after = by_numpy(x)
    np.testing.assert_allclose(after[0], x @ (before + 1))
    np.testing.assert_allclose(after[1], 2 * (before + 1))
    TABLE.assign(before)


def test_arrays_that_were_passed_may_be_overwritten():
    by_numpy, _ = _trace(lambda x, n, b: [x, tf.reshape(x, [24]), n[:, 0]], FLOATS, WHOLE, FLAGS)
    x, n, b = np.ones([4, 6], np.float32), np.ones([4, 6], np.int32), np.ones([4, 6], bool)
    found = by_numpy(x, n, b)
    x[:], n[:] = 5, 5
    assert all((part == 1).all() for part in found)


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("Conv2D", lambda x: tf.nn.conv2d(x[None, :, :, None], tf.ones([2, 2, 1, 1]), 1, "SAME")),
        ("AssignAddVariableOp", lambda x: [TABLE.assign_add(TABLE), x][1]),
        ("Erf", tf.nn.gelu),
        ("StatelessWhile", lambda x: tf.while_loop(lambda y: y[0, 0] < 9, lambda y: y + 1, [x])),
        ("bfloat16", lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32)),
        ("GatherV2", lambda x: tf.gather(x, tf.cast(x, tf.int32), axis=1, batch_dims=1)),
        ("Where", lambda x: tf.where(x > 0)),
    ],
)  # fmt: skip
def test_what_has_no_translation_is_refused_by_name(what, function):
    with pytest.raises(Untranslatable, match=what):
        _trace(function, FLOATS)


LOGITS = np.array([[0.0, 1.0, -1.0, -np.inf], [2.0, 2.0, -np.inf, -np.inf]], np.float32)
DRAWS = 20_000


def test_random_choices_have_their_probabilities():
    rows = np.repeat(LOGITS, DRAWS, 0)
    function, _ = _trace(
        lambda x: tf.random.categorical(x, 1, tf.int32), tf.TensorSpec(rows.shape, tf.float32)
    )
    drawn = np.reshape(function(rows)[0], [2, DRAWS])
    for row, logits in zip(drawn, LOGITS, strict=True):
        probs = np.exp(np.float64(logits)) / np.exp(np.float64(logits)).sum()
        counts = np.bincount(row, minlength=4)
        assert (counts[probs == 0] == 0).all()
        expected = DRAWS * probs[probs > 0]
        assert stats.chisquare(counts[probs > 0], expected).pvalue > 1e-4


def test_random_numbers_have_their_distributions():
    function, _ = _trace(
        lambda: [
            tf.random.normal([DRAWS], 1.0, 3.0), tf.random.uniform([DRAWS]),
            tf.random.uniform([DRAWS], -2, 3, tf.int32),
        ]
    )  # fmt: skip
    normal, uniform, whole = function()
    assert [part.dtype for part in (normal, uniform, whole)] == [np.float32, np.float32, np.int32]
    assert stats.kstest(normal, stats.norm(1, 3).cdf).pvalue > 1e-4
    assert stats.kstest(uniform, stats.uniform().cdf).pvalue > 1e-4
    assert stats.chisquare(np.bincount(whole + 2, minlength=5)).pvalue > 1e-4
    again, _, _ = function()
    assert abs(np.corrcoef(normal, again)[0, 1]) < 0.05  # each call draws other numbers
