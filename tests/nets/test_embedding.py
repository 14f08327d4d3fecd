"""Choices among many: their embedding, alone and in nests."""

import numpy as np
import pytest
import tensorflow as tf
from network_inputs import ACTIONS

import nets
from impala_mm.environments.choices import ChoiceSpec
from nets.torsos import Embedding

STATE, WORDS = ChoiceSpec((500,)), ChoiceSpec((30, 20, 50))
PLAYERS = {
    "a state": STATE,
    "words": WORDS,
    "an image and words": {"mission": WORDS, "view": tf.TensorSpec([7, 7, 3], tf.uint8)},
    "numbers and choices": (tf.TensorSpec([3], tf.float32), STATE, WORDS),
}


def _drawn(spec, leading, random):
    if isinstance(spec, ChoiceSpec):
        return random.integers(0, spec.choices, [*leading, len(spec.choices)], np.int32)
    if spec.dtype == tf.uint8:
        return random.integers(0, 256, [*leading, *spec.shape], np.uint8)
    return random.standard_normal([*leading, *spec.shape], np.float32)


def _entries(nest, T, B, seed=0):
    random = np.random.default_rng(seed)
    observation = tf.nest.map_structure(lambda spec: _drawn(spec, [T, B], random), nest)
    zeros = np.zeros([T, B])
    return observation, np.float32(zeros), np.int32(zeros), zeros != 0


def test_an_embedding_is_a_linear_layer_of_one_hot_vectors():
    embedding = Embedding(WORDS.choices, 8)
    numbers = _drawn(WORDS, [6], np.random.default_rng(0))
    hot = np.concatenate([np.eye(n)[numbers[:, i]] for i, n in enumerate(WORDS.choices)], 1)
    read = embedding(embedding.arrange(numbers).rows)
    np.testing.assert_allclose(read, hot @ embedding.trainable_variables[0].numpy(), atol=1e-5)
    assert 0.8 < np.std(embedding.trainable_variables[0]) * 3**0.5 < 1.2


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("a state", "float32"), ("words", "bfloat16"), ("an image and words", "bfloat16")],
)
def test_every_choice_is_read_and_learnt_from(kind, precision):
    nest = PLAYERS[kind]
    network = nets.make("auto", nest, ACTIONS, precision=precision)
    assert network.num_features == 64 + 1 + ACTIONS
    observation, *rest = _entries(nest, 2, 3)
    leaves = tf.nest.flatten(observation)
    seen = network.unroll(observation, *rest, network.initial_state(3))[0]
    for leaf in (leaf for leaf in leaves if leaf.dtype == np.int32):
        for i in range(leaf.shape[-1]):
            leaf[..., i] ^= 1
            changed = network.unroll(observation, *rest, network.initial_state(3))[0]
            assert np.abs(changed - seen).max() > 1e-3
            leaf[..., i] ^= 1
    with tf.GradientTape() as tape:
        features, _ = network.unroll(observation, *rest, network.initial_state(3))
        loss = tf.reduce_sum(features**2)
    gradients = tape.gradient(loss, network.trainable_variables)
    assert all(isinstance(gradient, tf.Tensor) for gradient in gradients), "dense, for all-reduce"


def test_what_words_ask_for_depends_on_the_image():
    nest = PLAYERS["an image and words"]
    network = nets.make("auto", nest, ACTIONS)
    seen, *rest = _entries(nest, 1, 4)
    seen = {"view": seen["view"][:, [0, 0, 1, 1]], "mission": seen["mission"][:, [0, 1, 0, 1]]}
    a, b, c, d = network.unroll(seen, *rest, network.initial_state(4))[0][0].numpy()
    assert np.abs((b - a) - (d - c)).max() > 1e-3, "linear heads could not learn it"


def test_the_gradient_of_an_embedding_is_that_of_the_rows_that_were_read():
    embedding = Embedding((3, 4), 2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(embedding.arrange([[1, 3], [1, 0]]).rows))
    gradient = tape.gradient(loss, embedding.trainable_variables[0])
    assert gradient.numpy()[:, 0].tolist() == [0, 2, 0, 1, 0, 0, 1]


def test_choices_are_refused_where_they_cannot_be_read():
    with pytest.raises(nets.Unsuitable, match="ShallowConvAgent does not fit observations of sha"):
        nets.make("ShallowConvAgent", STATE, ACTIONS)
    with pytest.raises(nets.Unsuitable, match="MLPAgent cannot stack frames of choices"):
        nets.make("MLPAgent", STATE, ACTIONS, frame_stack=2)


def test_specs_differ_if_the_numbers_of_choices_do():
    assert ChoiceSpec((500,)) == STATE != ChoiceSpec((300,))
    assert tf.TensorSpec([1], tf.int32) != STATE
    assert hash(ChoiceSpec((500,))) == hash(STATE)
