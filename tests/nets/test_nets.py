"""The networks: their inputs, the reset of their state, and their sizes."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from network_inputs import ACTIONS, NAMES, VECTOR, entries, spec_for, traced_unroll

import nets
from nets import network
from nets.lstm import LSTM, State
from nets.torsos import Conv, Layer

ATARI = tf.TensorSpec([84, 84, 4], tf.uint8)
SOME = ["MLPLSTMAgent", "ShallowConvAgent", "ResNetLSTMAgent"]


def some_state(network, B, seed=1):
    random = np.random.default_rng(seed)
    return tf.nest.map_structure(
        lambda x: tf.constant(random.standard_normal(x.shape, np.float32)), network.initial_state(B)
    )


def assert_close(left, right, atol=1e-5):
    tf.nest.assert_same_structure(left, right)
    for a, b in zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol)


@pytest.fixture(scope="module")
def network_of():
    made = {}

    def get(name):
        if name not in made:
            made[name] = nets.make(name, spec_for(name), ACTIONS)
        return made[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_an_unroll_is_its_steps_one_by_one(network_of, name):
    network = network_of(name)
    unroll = traced_unroll(network, spec_for(name)) if name in SOME[:2] else network.unroll
    for T, B in [(4, 3), (1, 1)]:
        observation, reward, action, first = (tf.constant(x) for x in entries(spec_for(name), T, B))
        if T > 1:
            first = tf.constant(np.isin(np.arange(T * B), [0, 4, 7, 9, 10, 11]).reshape(T, B))
        state = some_state(network, B)
        features, last = unroll(observation, reward, action, first, state)
        assert features.shape == (T, B, network.num_features)
        for t in range(T):
            step, state = network.step(observation[t], reward[t], action[t], first[t], state)
            assert_close(step, features[t])
        assert_close(state, last)


@pytest.mark.parametrize("name", NAMES)
def test_all_variables_exist_from_the_beginning(name):
    network = nets.make(name, spec_for(name), ACTIONS)
    before = [v.ref() for v in network.trainable_variables]
    with tf.GradientTape() as tape:
        features, _ = network.unroll(*entries(spec_for(name), 2, 2), network.initial_state(2))
        loss = tf.reduce_sum(features)
    assert [v.ref() for v in network.trainable_variables] == before
    assert all(g is not None for g in tape.gradient(loss, network.trainable_variables))


@pytest.mark.parametrize("name", SOME)
def test_a_first_entry_knows_nothing_of_what_was_before(network_of, name):
    network = network_of(name)
    one, other = (entries(spec_for(name), 5, 2, seed) for seed in (0, 1))
    first = np.zeros([5, 2], bool)
    first[2] = True
    # The observations are the same from entry 2 on; its last reward and action still differ.
    for mine, theirs, since in zip(one, other, (2, 3, 3), strict=False):
        theirs[since:] = mine[since:]
    other[1][2], other[2][2] = -one[1][2], (one[2][2] + 1) % ACTIONS
    left, left_last = network.unroll(*one[:3], first, some_state(network, 2, 1))
    right, right_last = network.unroll(*other[:3], first, some_state(network, 2, 2))
    assert not np.allclose(left[:2], right[:2], atol=1e-3)
    assert_close(left[2:], right[2:])
    assert_close(left_last, right_last)
    # The entry is read as the first one of all, without a reward and an action.
    fresh, _ = network.step(
        one[0][2], one[1][2] * 0, one[2][2] * 0 - 1, first[0], network.initial_state(2)
    )
    assert_close(fresh, left[2])


def test_without_first_reward_and_action_are_features():
    network = nets.make("MLPAgent", VECTOR, ACTIONS)
    observation, _, _, first = entries(VECTOR, 1, 2)
    args = observation[0], np.float32([0.5, -1]), np.int32([3, 0])
    features, state = network.step(*args, first[0], network.initial_state(2))
    np.testing.assert_array_equal(features[:, -5:], [[0.5, 0, 0, 0, 1], [-1, 1, 0, 0, 0]])
    assert state == nets.State((), ())
    features, _ = network.step(*args, ~first[0], state)
    np.testing.assert_array_equal(features[:, -5:], np.zeros([2, 5]))


def test_one_environment_that_restarts_leaves_the_others_alone(network_of):
    network = network_of("MLPLSTMAgent")
    observation, reward, action, first = entries(VECTOR, 4, 2)
    state = some_state(network, 2)
    left, _ = network.unroll(observation, reward, action, first, state)
    other, _ = network.unroll(observation, reward, action, first, some_state(network, 2, 2))
    assert not np.allclose(left[-1], other[-1], atol=1e-3), "without first the state carries"
    first[1, 0] = True
    right, _ = network.unroll(observation, reward, action, first, state)
    assert_close(left[:, 1], right[:, 1])
    assert not np.allclose(left[1:, 0], right[1:, 0], atol=1e-3)


def test_a_state_that_is_not_finite_ends_with_its_episode(network_of):
    network = network_of("MLPLSTMAgent")
    broken = tf.nest.map_structure(lambda x: x * np.nan, some_state(network, 2))
    observation, reward, action, first = entries(VECTOR, 2, 2)
    first[0] = True
    with tf.GradientTape() as tape:
        features, _ = network.unroll(observation, reward, action, first, broken)
        loss = tf.reduce_sum(features)
    for x in (features, *tape.gradient(loss, network.trainable_variables)):
        assert np.isfinite(x).all()


def test_the_gradient_of_an_unrolled_lstm_is_that_of_its_steps():
    core = LSTM(7)
    random = np.random.default_rng(0)
    inputs, first = (
        tf.constant(random.standard_normal([5, 3, 4], np.float32)),
        np.zeros([5, 3], bool),
    )
    first[0, 0] = first[2, 1] = first[4] = True
    first[4, 2] = False
    weights = random.standard_normal([5, 3, 7], np.float32)
    state = State(*tf.constant(random.standard_normal([2, 3, 7], np.float32)))
    core.step(inputs[0], first[0], state)

    def steps(inputs, first, state):
        outputs = []
        for t in range(5):
            output, state = core.step(inputs[t], first[t], state)
            outputs.append(output)
        return tf.stack(outputs), state

    def gradients(unroll):
        with tf.GradientTape() as tape:
            tape.watch([inputs, *state])
            outputs, last = unroll(inputs, first, state)
            loss = tf.reduce_sum(outputs * weights) + tf.reduce_sum(last.cell * last.hidden)
        return tape.gradient(loss, [inputs, *state, *core.trainable_variables])

    expected = gradients(steps)
    assert_close(gradients(core.unroll), expected)
    assert_close(gradients(tf.function(core.unroll, autograph=False)), expected)


def test_an_lstm_begins_by_remembering():
    core = LSTM(2)
    core.step(tf.zeros([1, 3]), tf.constant([False]), core.initial_state(1))
    np.testing.assert_array_equal(core.read.b, [0, 0, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("name", "features", "parameters"),
    [
        ("SimpleConvNetAgent", 517, 1_686_718),
        ("SimpleConvNetSameAgent", 517, 4_046_014),  # the predecessor's, as counted from its code
        ("ResNetLSTMAgent", 256, 1_620_949),  # the predecessor's, as counted from its code
        ("ShallowConvAgent", 261, 677_454),
    ],
)
def test_sizes_on_atari_with_heads_for_policy_and_baseline(name, features, parameters):
    network = nets.make(name, ATARI, ACTIONS)
    assert network.num_features == features
    heads = [snt.Linear(ACTIONS), snt.Linear(1)]
    for head in heads:
        head(tf.zeros([1, network.num_features]))
    variables = [v for m in (network, *heads) for v in m.trainable_variables]
    assert sum(v.shape.num_elements() for v in variables) == parameters


def of_bytes_and_of_floats(name, shape):
    """Return two networks with the same weights."""
    for dtype in (tf.uint8, tf.float32):
        tf.random.set_seed(1)
        yield nets.make(name, tf.TensorSpec(shape, dtype), ACTIONS)


@pytest.mark.parametrize("name", ["MLPAgent", "ShallowConvAgent"])
def test_images_of_bytes_are_read_by_their_contrast_and_floats_as_they_are(name):
    shape = [36, 36, 3]
    of_bytes, of_floats = of_bytes_and_of_floats(name, shape)
    observation, *rest = (x[0] for x in entries(tf.TensorSpec(shape, tf.uint8), 1, 2))
    observation[1] = 7 + observation[1] // 8  # a dark one: its own mean and deviation
    pixels = np.float64(observation)
    mean, deviation = (f(pixels, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
    left, _ = of_bytes.step(observation, *rest, of_bytes.initial_state(2))
    right, _ = of_floats.step(
        np.float32((pixels - mean) / np.sqrt(deviation**2 + 1)), *rest, of_floats.initial_state(2)
    )
    assert_close(left, right, atol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("range_", [(0, 256), (0, 3), (253, 256), (200, 201)])
def test_the_contrast_of_a_stack_is_right_however_bright_it_is(range_, fused):
    """It is computed from sums of each frame, whose squares are nearly equal in bright frames."""
    frames = np.random.default_rng(0).integers(*range_, [2, 84, 84, 4]).astype(np.uint8)
    sums = [network._sums(tf.constant(frames[..., i : i + 1])) for i in range(4)]
    picture = network.Picture(tf.constant(frames), tf.concat(sums, -1))
    seen = network._contrast(picture, tf.float32, fused)
    pixels = np.float64(frames)
    mean, variance = (f(pixels, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.var))
    expected = (pixels - mean) / np.sqrt(variance + 1)
    np.testing.assert_allclose(seen, expected, rtol=1e-3, atol=1e-4)


def test_bytes_that_are_no_image_are_divided_by_255():
    of_bytes, of_floats = of_bytes_and_of_floats("MLPAgent", [128])
    observation, *rest = (x[0] for x in entries(tf.TensorSpec([128], tf.uint8), 1, 2))
    left, _ = of_bytes.step(observation, *rest, of_bytes.initial_state(2))
    right, _ = of_floats.step(np.float32(observation) / 255, *rest, of_floats.initial_state(2))
    assert_close(left, right)


def test_auto_looks_at_the_observation():
    images = [[84, 84, 4], [36, 36, 1], [210, 160, 3]]
    small = [[7, 7, 3], [10, 10, 20], [35, 84, 4], [84, 35, 4]]
    others = [[4], [4, 84, 84], [84, 84], [], [2, 84, 84, 3]]
    assert {nets.auto(tf.TensorSpec(s, tf.uint8)) for s in images} == {"ShallowConvAgent"}
    assert {nets.auto(tf.TensorSpec(s, tf.uint8)) for s in small} == {"SmallConvAgent"}
    assert {nets.auto(tf.TensorSpec(s, tf.uint8)) for s in others} == {"MLPAgent"}
    assert nets.make("auto", VECTOR, ACTIONS).num_features == 64 + 1 + ACTIONS


def test_an_unknown_name_is_answered_with_the_nearest_and_all():
    with pytest.raises(
        nets.Unsuitable, match="'resnetLSTM'; did you mean ResNetLSTMAgent"
    ) as error:
        nets.make("resnetLSTM", ATARI, ACTIONS)
    assert all(name in str(error.value) for name in ["auto", *nets.NETWORKS.names])


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("ShallowConvAgent", [4], r"observations of shape \[4\]: .*; MLPAgent fits them"),
        ("ResNetLSTMAgent", [84, 84], r"it reads images \[height, width, channels\]"),
        ("SimpleConvNetAgent", [35, 84, 4], "images of at least 36x36 pixels"),
        ("ShallowConvLSTMAgent", [84, 19, 4], "images of at least 20x20 pixels"),
        ("MLPAgent", [None], "one known shape"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused_in_a_sentence(name, shape, sentence):
    with pytest.raises(nets.Unsuitable, match=sentence):
        nets.make(name, tf.TensorSpec(shape, tf.uint8), ACTIONS)


@pytest.mark.parametrize(("name", "size"), [("SimpleConvNetAgent", 36), ("ShallowConvAgent", 20)])
def test_the_smallest_image_is_read(name, size):
    nets.make(name, tf.TensorSpec([size, size, 1], tf.uint8), ACTIONS)


@pytest.mark.parametrize("size", [(84, 84), (39, 42)])
def test_a_first_layer_over_tiles_is_the_one_over_pixels(size):
    """A kernel of 8 with stride 4 adds up the same products, whatever the edges leave over."""
    torso = Conv([Layer(16, 8, 4)], hidden=1)
    image = np.random.default_rng(0).random([2, *size, 3]).astype(np.float32)
    torso(torso.arrange(image))
    (first,) = torso._convolutions
    tiles = tf.reshape(first.w, [2, 2, 4, 4, 3, 16])  # tile down, across; pixel down, across
    pixels = tf.reshape(tf.transpose(tiles, [0, 2, 1, 3, 4, 5]), [8, 8, 3, 16])
    expected = tf.nn.conv2d(image, pixels, 4, "VALID")
    np.testing.assert_allclose(first(torso.arrange(image)), expected, atol=1e-5)
