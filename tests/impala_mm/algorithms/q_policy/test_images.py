"""Images in the updates of SAC and TD3: random shifts, and a network that the policy shares."""

import types

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.actor.acting import Act
from impala_mm.algorithms.interface import Context
from tests.helpers import in_process

PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))
# Two new unrolls of two steps, and two optimizer steps.
SMALL = {
    "batch_size": 2, "unroll_length": 2, "minibatch_steps": 8, "updates_per_step": 0.5,
    "conv_units": 8, "mlp_sizes": "9,8", "precision": "float32", "compile_updates": False,
}  # fmt: skip
MOST = 2


def _made(algorithm, frame_stack=1, **settings):
    def of_images(spec):
        image = tf.TensorSpec([6, 7, 2], tf.uint8)
        return spec._replace(observation=image, frame_stack=frame_stack)

    return in_process.made(algorithm, "Pendulum-v1", of_images, **SMALL, **settings)


def _shifted(image, offset):
    """Return an image [H, W, C] moved down and to the right, with its border repeated."""
    padded = np.pad(image, [(MOST, MOST), (MOST, MOST), (0, 0)], "edge")
    down, right = MOST - np.array(offset)
    return padded[down:, right:][: image.shape[0], : image.shape[1]]


def _all_shifted(images, offsets):
    """Return images [T, B, ...] shifted by offsets [T, B, 2] or [B, 2]."""
    offsets = np.broadcast_to(offsets, (*images.shape[:2], 2))
    return np.stack(
        [
            [_shifted(image, offset) for image, offset in zip(*rows, strict=True)]
            for rows in zip(images, offsets, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("algorithm", "frames", "settings"),
    [
        ("sac", 1, {}),
        pytest.param("td3", 1, {"shared_network": True}, marks=pytest.mark.slow),
        pytest.param("sac", 2, {"shared_network": True}, marks=pytest.mark.slow),
    ],
)
def test_an_update_is_that_of_images_which_were_shifted_before(algorithm, frames, settings):
    """One shift is of the observations before the steps, another one of those after them.

    Where frames are stacked, a column is an unroll: there both are the same here, also in its
    earlier frames.
    """
    random = np.random.default_rng(0)
    learnt = []
    for most in (MOST, 0):
        learns, exchange = _made(algorithm, frames, random_shift=most, **settings)
        steps, columns = learns.batch_shape
        batch = in_process.random_batch(learns, steps, columns)
        earlier = in_process.random_batch(learns, 1, columns, seed=1).unrolls
        earlier = earlier._replace(first=~earlier.first)
        if most:
            offsets = random.integers(-MOST, MOST + 1, [2, columns, 2]).astype(np.int32)
            offsets = np.stack([offsets[0]] * 2) if frames > 1 else offsets
            learns._draw_offsets = lambda *_, offsets=offsets: tf.constant(offsets)
        else:
            seen, before = batch.unrolls.observation, earlier.observation
            moved = offsets[0] if frames > 1 else offsets
            seen, before = _all_shifted(seen, moved), _all_shifted(before, offsets[0])
            batch = batch._replace(unrolls=batch.unrolls._replace(observation=seen))
            earlier = earlier._replace(observation=before)
        batch = batch._replace(start=learns.start_after(in_process.tensors(earlier)))
        learns.update(in_process.tensors(batch), PROGRESS, exchange)
        learnt.append(np.concatenate([np.ravel(v) for v in learns.variables.trained]))
    np.testing.assert_allclose(*learnt, atol=1e-5)


def test_every_learner_draws_its_part_of_all_shifts():
    learns, _ = _made("sac", random_shift=MOST)

    def drawn(size, rank, columns):
        batch = types.SimpleNamespace(weight=tf.zeros([columns]))
        return learns._draw_offsets(batch, types.SimpleNamespace(size=size, rank=rank)).numpy()

    alone = drawn(1, 0, 400)
    np.testing.assert_array_equal(np.concatenate([drawn(2, r, 200) for r in (0, 1)], 1), alone)
    values, counts = np.unique(alone, return_counts=True)
    np.testing.assert_array_equal(values, range(-MOST, MOST + 1))
    assert counts.min() > 250, "of 320 each on average"
    assert np.mean(alone[0] == alone[1]) < 0.3, "what is learnt and its goals are shifted apart"


@pytest.mark.parametrize(
    ("trains", "which"), [("critics", [True, False]), ("policy", [False, True])]
)
def test_a_shared_network_is_trained_by_the_loss_of_the_q_networks_alone(trains, which):
    rates = {"critics": {"learning_rate": 0.0}, "policy": {"critic_rate": 0.0}}[trains]
    learns, exchange = _made("sac", shared_network=True, **rates)
    parts = [learns._critics.body.trainable_variables, learns._policy.trainable_variables]
    assert not {v.ref() for v in parts[0]} & {v.ref() for v in parts[1]}
    before = [[v.numpy() for v in part] for part in parts]
    batch = in_process.random_batch(learns, *learns.batch_shape)
    learns.update(in_process.tensors(batch), PROGRESS, exchange)
    changed = [
        [bool(np.any(v.numpy() != old)) for v, old in zip(part, olds, strict=True)]
        for part, olds in zip(parts, before, strict=True)
    ]
    assert changed == [[moves] * len(part) for moves, part in zip(which, parts, strict=True)]


def test_actors_of_a_shared_network_receive_it():
    learns, _ = _made("sac", shared_network=True)
    Act(learns, 2)  # refuses variables that actors do not receive
