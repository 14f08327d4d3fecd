"""The choices for a network's layers, and two networks that read the same entries."""

import numpy as np
import pytest
import tensorflow as tf
from network_inputs import ACTIONS, SMALL, VECTOR, entries
from processes import ROOT

import nets

RECURRENT = "MLPLSTMAgent"


def _read(network, spec=VECTOR, seed=0):
    return network.unroll(*entries(spec, 3, 2, seed), network.initial_state(2))[0]


@pytest.mark.parametrize("activation", nets.ACTIVATIONS)
def test_an_mlp_is_computed_with_its_activation(activation):
    network = nets.make("MLPAgent", VECTOR, ACTIONS, style=nets.Style((7,), activation))
    b, w = network.trainable_variables
    observation = entries(VECTOR, 3, 2)[0]
    expected = nets.ACTIVATIONS[activation](observation @ w + b)
    np.testing.assert_allclose(_read(network)[..., :7], expected, atol=1e-5)


def test_layers_are_normalised_before_the_activation():
    style = nets.Style((64, 32), "relu", layer_norm=True)
    network = nets.make("MLPAgent", VECTOR, ACTIONS, style=style)
    shapes = [v.shape.as_list() for v in network.trainable_variables]
    assert shapes == [[64], [5, 64], [32], [64, 32], [64], [64], [32], [32]]
    observation, *rest = entries(VECTOR, 3, 2)
    one, same = (
        network.unroll(seen, *rest, network.initial_state(2))[0]
        for seen in (1000 * observation, 2000 * observation)
    )
    np.testing.assert_allclose(one, same, atol=1e-2)
    assert np.abs(one - _read(network, seed=1)).max() > 0.1
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(_read(network) ** 2)
    assert all(g is not None for g in tape.gradient(loss, network.trainable_variables))


def test_convolutions_are_normalised_before_the_activation():
    """So pictures of half the brightness are the same, before the biases are trained."""
    style = nets.Style(layer_norm=True)
    network = nets.make("SmallConvAgent", SMALL, ACTIONS, style=style)
    observation, *rest = entries(SMALL, 3, 2)
    dark = np.asarray(observation) // 2
    one, same = (
        network.unroll(seen, *rest, network.initial_state(2))[0] for seen in (dark, 2 * dark)
    )
    np.testing.assert_allclose(one, same, atol=1e-2)
    assert np.abs(one).max() > 0.1


def test_an_mlp_leaves_out_the_given_share_of_its_units_by_a_seed():
    """The rest is scaled, and XLA draws the same: each unit by itself, and as often as others."""
    layer = nets.MLP(nets.Style((400,), "relu", dropout=0.2))
    seen = tf.ones([500, 3])
    layer(seen)
    for variable in layer.trainable_variables:
        variable.assign(tf.ones_like(variable))
    seeds = [tf.constant(seed, tf.int64) for seed in ([1, 2], [1, 3], [2, 2], [-5, 2**40])]
    found = [layer(seen, seed).numpy() for seed in seeds]
    compiled = tf.function(layer, jit_compile=True, autograph=False)
    np.testing.assert_array_equal(compiled(seen, seeds[0]), found[0])
    np.testing.assert_array_equal(layer(seen), np.full([500, 400], 4.0))
    out = np.stack([units == 0 for units in found]).astype(float)  # [seeds, N, D]
    assert np.unique(np.stack(found)).tolist() == [0, 5]
    n, d = out.shape[1:]
    np.testing.assert_allclose(out.mean((1, 2)), 0.2, atol=4 * (0.16 / (n * d)) ** 0.5)
    np.testing.assert_allclose(out.mean(1), 0.2, atol=5 * (0.16 / n) ** 0.5)
    np.testing.assert_allclose(out.mean(2), 0.2, atol=5 * (0.16 / d) ** 0.5)
    between_seeds = np.corrcoef(out.reshape(len(seeds), -1))
    between_units = np.corrcoef(out[0].T)
    assert np.abs(between_seeds - np.eye(len(seeds))).max() < 5 * (n * d) ** -0.5
    assert np.abs(between_units - np.eye(d)).max() < 5.5 * n**-0.5


def test_the_initial_weights_of_an_mlp_have_the_chosen_scale():
    style = nets.Style((5,), mlp_init_scale=2.0)
    network = nets.make("MLPAgent", VECTOR, ACTIONS, style=style)
    w = network.trainable_variables[1].numpy()
    np.testing.assert_allclose(w @ w.T, 4 * np.eye(5), atol=1e-4)


@pytest.mark.parametrize("name", ["MLPLSTMAgent", "ResNetLSTMAgent", "MLPGRUAgent"])
def test_the_size_of_every_core_can_be_chosen(name):
    spec = VECTOR if name.startswith("MLP") else SMALL
    network = nets.make(name, spec, ACTIONS, style=nets.Style(lstm_size=10))
    assert network.num_features == 10
    assert {x.shape for x in tf.nest.flatten(network.initial_state(3).core)} == {(3, 10)}


@pytest.mark.parametrize(
    ("style", "channels", "features"),
    [
        ({}, [16, 32], 128),
        ({"conv_factor": 2.5}, [40, 80], 128),
        ({"conv_factor": 0.01}, [1, 1], 128),
        ({"conv_units": 7}, [16, 32], 7),
        ({"conv_units": 0}, [16, 32], 18 * 20 * 32),
    ],
)
def test_convolutions_and_the_layer_after_them_have_the_chosen_sizes(style, channels, features):
    network = nets.make("SmallConvAgent", SMALL, ACTIONS, style=nets.Style(**style))
    kernels = [v.shape for v in network.trainable_variables if v.shape.rank == 4]
    assert [shape[-1] for shape in kernels] == channels
    assert network.num_features == features + 1 + ACTIONS


@pytest.mark.parametrize(
    ("name", "style", "sentence"),
    [
        ("MLPAgent", {"lstm_size": 9}, "MLPAgent has no LSTM, GRU or GTrXL, so lstm_size would"),
        ("MLPAgent", {"conv_factor": 2.0}, "MLPAgent has no convolutions, so conv_factor would"),
        ("MLPLSTMAgent", {"conv_units": 0}, "has no convolutions, so conv_units would have no"),
        ("ShallowConvAgent", {"mlp_sizes": (9,)}, "has no MLP for such observations, so mlp_sizes"),
        ("ResNetLSTMAgent", {"layer_norm": True}, "so layer_norm would have no effect: leave it"),
        ("ResNetLSTMAgent", {"activation": "elu"}, "so activation would have no effect: leave it"),
    ],
)
def test_a_choice_without_effect_is_refused(name, style, sentence):
    spec = VECTOR if name.startswith("MLP") else SMALL
    with pytest.raises(nets.Unsuitable, match=sentence):
        nets.make(name, spec, ACTIONS, style=nets.Style(**style))


def test_the_mlp_of_a_nest_has_the_chosen_layers_beside_convolutions():
    nest = {"view": SMALL, "place": VECTOR}
    network = nets.make("ShallowConvAgent", nest, ACTIONS, style=nets.Style((9,)))
    assert network.num_features == 256 + 9 + 1 + ACTIONS


class Double(nets.Torso):
    def __call__(self, observation):
        return 2 * observation


def test_a_network_of_ones_own_needs_no_style():
    nets.register("Double", lambda: (Double(), None))
    assert nets.make("Double", VECTOR, ACTIONS).num_features == 5 + 1 + ACTIONS


def test_the_networks_of_the_page_are_built(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "sandbox")
    monkeypatch.setattr(nets.NETWORKS, "_things", dict(nets.NETWORKS._things))
    nets.register("TwinAgent", "own_network:twin")
    nets.register("TwinLSTMAgent", "own_network:twin_lstm")
    network = nets.make("TwinAgent", VECTOR, ACTIONS, style=nets.Style((8, 6)))
    assert network.num_features == 2 * 6 + 1 + ACTIONS
    network = nets.make("TwinLSTMAgent", VECTOR, ACTIONS, style=nets.Style((8, 6), lstm_size=9))
    assert network.num_features == 9
    assert _read(network).shape == (3, 2, 9)
    with pytest.raises(nets.Unsuitable, match="it reads vectors; SmallConvAgent fits them"):
        nets.make("TwinAgent", tf.TensorSpec([9, 9, 1], tf.uint8), ACTIONS)


@pytest.mark.parametrize("name", ["MLPAgent", RECURRENT])
def test_separate_networks_compute_what_each_computes_alone(name):
    policy, value = (nets.make(name, VECTOR, ACTIONS, style=nets.Style((8,))) for _ in range(2))
    both = nets.Separate(policy, value)
    assert both.trainable_variables == policy.trainable_variables + value.trainable_variables
    read = _read(both)
    np.testing.assert_array_equal(read.policy, _read(policy))
    np.testing.assert_array_equal(read.value, _read(value))
    observation, *rest = entries(VECTOR, 3, 2)
    state = both.initial_state(2)
    for t in range(3):
        step, state = both.step(observation[t], *(x[t] for x in rest), state)
        np.testing.assert_allclose(step.value, read.value[t], atol=1e-5)
        np.testing.assert_allclose(step.policy, read.policy[t], atol=1e-5)
    assert np.abs(read.policy - read.value).max() > 1e-2
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(_read(both).policy ** 2)
    gradients = tape.gradient(loss, both.trainable_variables)
    own = len(policy.trainable_variables)
    assert [g is None for g in gradients] == [False] * own + [True] * own


def test_separate_networks_keep_the_earlier_frames_once():
    spec = tf.TensorSpec([36, 36, 1], tf.uint8)
    one, other = (nets.make("ShallowConvAgent", spec, ACTIONS, 4) for _ in range(2))
    state = nets.Separate(one, other).initial_state(2)
    tf.nest.assert_same_structure(state.frames, one.initial_state(2).frames)
    assert state.core == ((), ())
