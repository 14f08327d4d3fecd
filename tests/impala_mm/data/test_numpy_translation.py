"""A translated function, whose batch may have any size, returns what TensorFlow returns."""

import numpy as np
import pytest
import tensorflow as tf

import nets
from impala_mm.data.numpy_translation import Translation, Untranslatable

IMAGES = tf.TensorSpec([None, 9, 7, 3], tf.float32)
ROWS = tf.TensorSpec([None, 6], tf.float32)


def _evaluated(function, specs, calls):
    """Return NumPy's and TensorFlow's results for each of some calls' arrays."""
    concrete = tf.function(
        lambda *given: tf.nest.flatten(function(*given)), autograph=False
    ).get_concrete_function(*specs)
    translation = Translation(concrete)
    for number, variable in translation.read:
        translation.values[number] = variable.numpy()
    random, values = np.random.default_rng(0), translation.values
    for arrays in calls:
        for number, array in zip(translation.inputs, arrays, strict=True):
            values[number] = array
        for step in [step for steps in translation.steps for step in steps]:
            found = step.call.bind(random)(*(values[number] for number in step.inputs))
            found = found if len(step.outputs) > 1 else [found]
            for number, value in zip(step.outputs, found, strict=True):
                values[number] = value
        ours = [values[number] for number in translation.outputs]
        yield ours, concrete(*map(tf.constant, arrays))


def _check(function, *specs, rtol=1e-5, atol=1e-5):
    draws = np.random.default_rng(1)

    def drawn(spec, n):
        shape = [n, *spec.shape[1:]]
        if spec.dtype.is_floating:
            return draws.normal(size=shape).astype(np.float32)
        return draws.integers(256 if spec.dtype == tf.uint8 else 2, size=shape).astype(
            spec.dtype.as_numpy_dtype
        )

    calls = [[drawn(spec, n) for spec in specs] for n in (1, 4)]
    for ours, theirs in _evaluated(function, specs, calls):
        for one, other in zip(ours, theirs, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.numpy().dtype)
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, (3, 2)])
@pytest.mark.parametrize("size", [1, 2, (5, 3)])
def test_convolution_and_pooling_of_images(padding, stride, size):
    height, width = (size, size) if isinstance(size, int) else size
    kernel = np.random.default_rng(2).normal(size=[height, width, 3, 4]).astype(np.float32)
    _check(
        lambda x: [
            tf.nn.conv2d(x, kernel, stride, padding),
            tf.nn.max_pool2d(x, size, stride, padding),
            tf.nn.avg_pool2d(x, size, stride, padding),
        ],
        IMAGES,
    )


def _slow_if_again(name):
    """Mark bodies with memories that other networks have, too."""
    again = name.startswith(("ResNet", "SmallConv")) and name.endswith(("LSTMAgent", "GRUAgent"))
    again |= name.endswith("GTrXLAgent") and not name.startswith("MLP")
    return pytest.param(name, marks=pytest.mark.slow) if again else name


@pytest.mark.parametrize("name", map(_slow_if_again, nets.NETWORKS.names))
def test_a_step_of_every_network(name):
    vector = name.startswith("MLP")
    observation = tf.TensorSpec([6], tf.float32) if vector else tf.TensorSpec([44, 40, 1], tf.uint8)
    network = nets.make(name, observation, 3, frame_stack=2)
    draws = np.random.default_rng(2)
    for variable in network.trainable_variables:  # with biases that are not 0
        inputs = np.prod(variable.shape[:-1]) if variable.shape.rank > 1 else 9
        variable.assign(draws.normal(0, inputs**-0.5, variable.shape))
    state = network.initial_state(1)
    flat = tf.nest.flatten(state)

    def step(seen, reward, action, first, *kept):
        return network.step(seen, reward, action, first, tf.nest.pack_sequence_as(state, kept))

    specs = [
        (observation.shape, observation.dtype),
        ((), tf.float32),
        ((), tf.int32),
        ((), tf.bool),
    ]
    specs += [(part.shape[1:], part.dtype) for part in flat]
    _check(step, *(tf.TensorSpec([None, *shape], dtype) for shape, dtype in specs))


WEIGHTS = tf.Variable(np.random.default_rng(3).normal(size=[6, 18]).astype(np.float32))
BATCH = {
    "shapes": lambda x: [
        tf.reshape(x, [-1, 2, 3]), tf.reshape(x, [tf.shape(x)[0] * 2, 3]), x[:, None],
        tf.broadcast_to(x[:1], tf.shape(x)), tf.fill(tf.shape(x), 3.0), tf.zeros_like(x),
        tf.ones_like(x), *tf.unstack(x, axis=1), *tf.unstack(x[:, :1], axis=1),
        tf.reduce_prod(tf.shape(x)),
    ],
    "gelu": lambda x: [tf.nn.gelu(x), tf.math.erf(3 * x)],
    "a branch": lambda x: tf.cond(
        tf.reduce_any(x > 0.9), lambda: x @ WEIGHTS, lambda: x @ -WEIGHTS
    ),
    "the steps of a GRU": lambda x: [
        part
        for gates in [tf.sigmoid(x @ WEIGHTS)]
        for reset, update, new in [tf.split(gates, 3, -1)]
        for part in [update * x + (1 - update) * tf.tanh(tf.concat([reset * x, new], -1)[:, :6])]
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BATCH)
def test_batches_of_any_size(name):
    _check(BATCH[name], ROWS)


ONES, PADS = np.ones([1, 1, 1, 3], np.float32), [(0, 0), (1, 1), (1, 1), (0, 0)]


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("Conv2D of 3 channels in groups of 1", lambda x: tf.nn.conv2d(x, ONES, 1, "SAME")),
        ("Conv2D with dilations", lambda x: _conv(x, dilations=2)),
        ("Conv2D with padding=EXPLICIT", lambda x: _conv(x, PADS)),
        ("complex64", lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex64)))),
        ("Cumsum", lambda x: tf.cumsum(x, 1)),
        ("Reshape to the shape", lambda x: tf.reshape(x, tf.cast(x[0, 0, 0, :2], tf.int32))),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(what, function):
    with pytest.raises(Untranslatable, match=what):
        list(_evaluated(function, [IMAGES], []))


def _conv(x, padding="SAME", **options):
    return tf.nn.conv2d(x, tf.ones([1, 1, x.shape[-1], 2]), 1, padding, **options)
