"""The gated transformer, computed by NumPy in float64 from its definition, and step by step."""

import numpy as np
import pytest
import tensorflow as tf

import nets

T, B, I, D, L, H, M = 7, 3, 5, 6, 2, 3, 4  # noqa: E741


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _norm(x, norm):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * norm.scale.numpy() + norm.offset.numpy()


def _gate(x, y, gate):
    (w_r, w_z, w_g), (u_r, u_z) = (
        np.split(layer.w.numpy(), n, 1) for layer, n in [(gate._read, 3), (gate._recall, 2)]
    )
    reset = _sigmoid(y @ w_r + x @ u_r)
    update = _sigmoid(y @ w_z + x @ u_z + gate._bias.b.numpy())
    candidate = np.tanh(y @ w_g + (reset * x) @ gate._candidate.w.numpy())
    return (1 - update) * x + update * candidate


def _entry(core, x, earlier):
    """Return the features [D] of inputs [I], and what all layers read [L, D].

    `earlier` are the readings [L, D] of the entries before in the episode, the newest one last.
    """
    x = x @ core._enter.w.numpy() + core._enter.b.numpy()
    read = []
    for number, layer in enumerate(core._layers):
        read.append(x)
        given = [_norm(reading[number], layer._norms[0]) for reading in earlier[-M:]]
        given.append(_norm(x, layer._norms[0]))
        mixed = np.zeros(D)
        for head in np.split(np.arange(D), H):
            query, key, value, distance = (
                part.w.numpy()[:, head]
                for part in (layer._query, layer._key, layer._value, layer._distance)
            )
            u, v = layer._by_content.b.numpy()[head], layer._by_distance.b.numpy()[head]
            scores = []
            for place, seen in enumerate(given):
                back = len(given) - 1 - place
                angles = back / 10_000 ** (np.arange(0, D, 2) / D)
                wave = np.concatenate([np.sin(angles), np.cos(angles)]) @ distance
                asked = given[-1] @ query
                scores.append(((asked + u) @ (seen @ key) + (asked + v) @ wave) / np.sqrt(D / H))
            weights = np.exp(scores) / np.sum(np.exp(scores))
            mixed[head] = sum(w * (seen @ value) for w, seen in zip(weights, given, strict=True))
        x = _gate(x, np.maximum(mixed @ layer._mixed.w.numpy(), 0), layer._gates[0])
        (w, b), (w2, b2) = ([v.numpy() for v in (part.w, part.b)] for part in layer._mlp._layers)
        hidden = np.maximum(_norm(x, layer._norms[1]) @ w + b, 0)
        x = _gate(x, np.maximum(hidden @ w2 + b2, 0), layer._gates[1])
    return x, np.stack(read)


def _core():
    """Return a core of random float64 variables, which no bias leaves at 0."""
    core, random = nets.GTrXL(D, L, H, M), np.random.default_rng(0)
    core.step(
        tf.zeros([1, I], tf.float64), tf.constant([True]), tf.zeros([1, M, L * D + 1], tf.float64)
    )
    np.testing.assert_array_equal(core._layers[0]._gates[0]._bias.b, np.full(D, -2.0))
    for variable in core.trainable_variables:
        variable.assign(random.normal(0, 0.7, variable.shape))
    return core


def _inputs():
    """Return inputs, resets within the unroll, and a state with two entries, four and none."""
    random = np.random.default_rng(1)
    inputs, state = random.standard_normal([T, B, I]), random.standard_normal([B, M, L * D + 1])
    state[:, :, -1] = [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]
    state = np.where(state[:, :, -1:] > 0, state, 0)
    first = np.zeros([T, B], bool)
    first[0, 2] = first[2, 0] = first[5] = True
    first[5, 1] = False
    return [tf.constant(x) for x in (inputs, first, state)]


def test_each_entry_attends_to_those_before_it_in_its_episode():
    core, (inputs, first, state) = _core(), _inputs()
    expected, readings = np.zeros([T, B, D]), []
    for b in range(B):
        earlier = [x[:-1].reshape(L, D) for x in state[b].numpy() if x[-1]]
        for t in range(T):
            earlier = [] if first[t, b] else earlier
            expected[t, b], read = _entry(core, inputs[t, b].numpy(), earlier)
            earlier = [*earlier, read]
        readings.append(earlier[-M:])
    signature = [tf.TensorSpec([None, None, *x.shape[2:]], x.dtype) for x in (inputs, first)]
    signature.append(tf.TensorSpec([None, *state.shape[1:]], state.dtype))
    for unroll in (core.unroll, tf.function(core.unroll, signature, autograph=False)):
        features, last = unroll(inputs, first, state)
        np.testing.assert_allclose(features, expected, rtol=1e-9, atol=1e-12)
        for b, earlier in enumerate(readings):
            kept = np.zeros([M, L * D + 1])
            kept[M - len(earlier) :] = [np.append(read, 1) for read in earlier]
            np.testing.assert_allclose(last[b], kept, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cut", [1, 3])
def test_neither_single_steps_nor_shorter_unrolls_change_the_features(cut):
    core, (inputs, first, state) = _core(), _inputs()
    features, last = core.unroll(inputs, first, state)
    parts = []
    for t in range(0, T, cut):
        if cut == 1:
            part, state = core.step(inputs[t], first[t], state)
            part = part[None]
        else:
            part, state = core.unroll(inputs[t : t + cut], first[t : t + cut], state)
        parts.append(part)
    np.testing.assert_allclose(tf.concat(parts, 0), features, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(state, last, rtol=1e-12, atol=1e-13)


def test_gradients_reach_the_entries_of_the_unroll_and_not_its_state():
    core, (inputs, first, state) = _core(), _inputs()
    with tf.GradientTape() as tape:
        tape.watch([inputs, state])
        features, _ = core.unroll(inputs, first, state)
        loss = tf.reduce_sum(features[6])
    of_inputs, of_state, *of_variables = tape.gradient(
        loss, [inputs, state, *core.trainable_variables]
    )
    # Two layers of four entries reach all seven, as far as they are of the episode.
    reached = np.any(of_inputs.numpy() != 0, -1)
    np.testing.assert_array_equal(
        reached, np.transpose([[0] * 5 + [1] * 2, [1] * 7, [0] * 5 + [1] * 2])
    )
    assert of_state is None
    assert all(np.any(gradient != 0) for gradient in of_variables)


def test_what_an_earlier_episode_left_does_not_spread_even_if_it_is_not_finite():
    core, (inputs, first, state) = _core(), _inputs()
    first = tf.concat([tf.ones([1, B], tf.bool), first[1:]], 0)
    for broken in (
        core.unroll(inputs, first, state * np.nan),
        core.step(inputs[0], first[0], state * np.nan),
    ):
        assert all(np.isfinite(x).all() for x in broken)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(nets.Unsuitable, match="gtrxl_heads=4 does not divide the width 10"):
        nets.make(
            "MLPGTrXLAgent", tf.TensorSpec([5], tf.float32), 4, style=nets.Style(lstm_size=10)
        )
