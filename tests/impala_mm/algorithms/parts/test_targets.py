"""Target networks, which follow others by a share."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.parts import targets


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((), [7.0, 1.0, 0.1, 1e-30, 3e38]),
        ((1.0,), [7.0, 1.0, 0.1, 1e-30, 3e38]),
        ((0.25,), [4.0, -0.5, 0.775, 1.5, 7.5e37]),
        ((0.0,), [3.0, -1.0, 1.0, 2.0, 9.0]),
    ],
)
def test_a_share_of_1_copies_a_target_network_exactly_and_0_leaves_it(shares, expected):
    target, online = tf.Variable([3.0, -1, 1, 2, 9]), tf.Variable([7.0, 1, 0.1, 1e-30, 3e38])
    targets.follow([target], [online], *shares)
    np.testing.assert_array_equal(target, np.float32(expected))
