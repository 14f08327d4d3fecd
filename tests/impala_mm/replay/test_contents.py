"""An unroll's bytes: packed without loss, and counted in steps."""

import numpy as np
import pytest
from unrolls import CODEC, LENGTH, unroll

from impala_mm.replay.contents import count_steps, pack, unpack


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
