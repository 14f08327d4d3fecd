"""An unroll's bytes: packed without loss, counted, and searched for NaN and infinity."""

import in_process
import numpy as np
import pytest
import tensorflow as tf
from unrolls import CODEC, LENGTH, SPEC, unroll

from impala_mm.data.trajectory import Unroll, UnrollCodec
from impala_mm.replay.contents import count_steps, is_trainable, pack, unpack


def test_unrolls_are_packed_without_loss():
    content = b"unroll" * 1000
    assert len(pack(content)) < 100
    assert unpack(pack(content), len(content)) == content
    noise = np.random.default_rng(0).bytes(100)
    assert unpack(pack(noise), 100) == noise
    with pytest.raises(ValueError, match="a stored unroll of 100 bytes is none of 6000 bytes"):
        unpack(noise, 6000)


def test_steps_are_new_entries_without_resets():
    assert count_steps(CODEC, unroll(1), overlap=1) == LENGTH
    assert count_steps(CODEC, unroll(1, resets=2), overlap=1) == LENGTH - 2
    assert count_steps(CODEC, unroll(1), overlap=3) == LENGTH - 2


def test_numbers_that_are_not_finite_are_found():
    assert is_trainable(CODEC, unroll(1))
    assert not is_trainable(CODEC, unroll(np.nan))
    assert not is_trainable(CODEC, unroll(-np.inf))


@pytest.mark.parametrize(
    ("place", "number", "allowed"),
    [
        ("extras", -np.inf, True),
        ("extras", np.nan, False),
        ("start", np.inf, False),
        ("observation", np.inf, False),
        ("reward", np.inf, False),
    ],
)
def test_only_what_actors_record_beside_observations_and_rewards_may_be_infinite(
    place, number, allowed
):
    scalar = tf.TensorSpec([], tf.float32)
    spec = SPEC._replace(step=SPEC.step._replace(extras=scalar), start=scalar)

    def fill(name, leaf, *lead):
        found = np.zeros([*lead, *leaf.shape], leaf.dtype.as_numpy_dtype)
        if name == place:
            found[...] = number
        return found

    entries = {
        name: fill(name, leaf, LENGTH + 1)
        for name, leaf in spec.step._asdict().items()
        if leaf != ()
    }
    made = Unroll(spec.step._replace(**entries), fill("start", spec.start))
    codec = UnrollCodec(spec)
    assert is_trainable(codec, in_process.encoded(codec, made)) == allowed
