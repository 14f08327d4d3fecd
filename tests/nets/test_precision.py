"""A torso that computes in bfloat16: its results are near float32's, its weights unchanged."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from network_inputs import SMALL, VECTOR, entries, spec_for

import nets


def _made(name, precision):
    tf.random.set_seed(1)
    return nets.make(name, spec_for(name), 4, precision=precision)


def _learnt(network, spec):
    """Return the features of a batch and the gradient of their mean square."""
    with tf.GradientTape() as tape:
        features, _ = network.unroll(*entries(spec, 3, 2), network.initial_state(2))
        loss = tf.reduce_mean(features**2)
    return features, tape.gradient(loss, network.trainable_variables)


@pytest.mark.parametrize("name", ["MLPLSTMAgent", "ShallowConvAgent"])
def test_bfloat16_rounds_what_is_computed_and_leaves_weights_and_gradients_float32(name):
    """bfloat16 has 8 bits, so each operation has an error of up to 0.4%."""
    exact, rounded = _made(name, "float32"), _made(name, "bfloat16")
    right, right_gradients = _learnt(exact, spec_for(name))
    features, gradients = _learnt(rounded, spec_for(name))
    for ours, theirs in zip(rounded.trainable_variables, exact.trainable_variables, strict=True):
        assert ours.dtype == tf.float32
        np.testing.assert_array_equal(ours, theirs)
    assert features.dtype == tf.float32
    assert all(gradient.dtype == tf.float32 for gradient in gradients)
    assert 1e-4 < tf.norm(features - right) / tf.norm(right) < 0.03
    differences = [ours - theirs for ours, theirs in zip(gradients, right_gradients, strict=True)]
    norm = tf.linalg.global_norm
    assert 1e-4 < norm(differences) / norm(right_gradients) < 0.1


def test_a_step_and_an_unroll_of_one_network_may_be_traced_at_once():
    """Otherwise each could read the other's casts as its weights, tensors of a foreign graph."""
    network, failed = _made("MLPAgent", "bfloat16"), []
    observation, reward, action, first = entries(VECTOR, 4, 2)

    def trace():
        try:
            for _ in range(2):
                state = network.initial_state(2)
                tf.function(network.unroll, autograph=False)(
                    observation, reward, action, first, state
                )
                tf.function(network.step, autograph=False)(
                    observation[0], reward[0], action[0], first[0], state
                )
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=trace) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert all(isinstance(v, tf.Variable) for v in network.trainable_variables)


def test_a_torso_that_fails_keeps_its_weights():
    network = _made("SimpleConvNetAgent", "bfloat16")
    count = len(network.trainable_variables)
    with pytest.raises(tf.errors.InvalidArgumentError, match="divisible by filter depth"):
        network._features(tf.zeros([2, 36, 36, 5]))
    assert len(network.trainable_variables) == count > 0
    _learnt(network, SMALL)
