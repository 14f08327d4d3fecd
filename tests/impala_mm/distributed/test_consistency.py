"""Variables that drifted apart: rounding is repaired and counted, more ends the run."""

import numpy as np
import tensorflow as tf
from in_threads import together

from impala_mm.distributed.group import VariablesDiffer, check_variables


def _check(*values_of_ranks):
    """Return for each rank (what the check returned or raised, the variables after it)."""

    def act(group):
        mine = values_of_ranks[group.rank]
        variables = [tf.Variable(value, name=f"v{i}") for i, value in enumerate(mine)]
        try:
            found = check_variables(group, variables)
        except VariablesDiffer as error:
            found = error
        return found, [v.numpy() for v in variables]

    return together(len(values_of_ranks), act)


WEIGHTS, COUNT = np.linspace(-2, 2, 7, dtype=np.float32), np.int64(3)


def test_equal_variables_are_left_alone():
    for found, values in _check([WEIGHTS, COUNT], [WEIGHTS, COUNT]):
        assert found == 0
        np.testing.assert_array_equal(values[0], WEIGHTS)


def test_one_ulp_is_repaired_by_rank_0s_value_and_counted():
    other = WEIGHTS.copy()
    other[2] = np.nextafter(other[2], np.float32(9))
    for found, values in _check([WEIGHTS, COUNT], [other, COUNT], [WEIGHTS, COUNT]):
        assert found == 1
        np.testing.assert_array_equal(values[0], WEIGHTS)


def test_more_ends_all_ranks_with_the_variables_name_and_repairs_nothing():
    other = WEIGHTS.copy()
    other[2] += 1e-3
    ranks = _check([COUNT, WEIGHTS], [COUNT, other], [COUNT, WEIGHTS])
    for found, _ in ranks:
        assert str(found).startswith("v1 of learner 1 differs from learner 0's by 0.0005 of its")
    np.testing.assert_array_equal(ranks[1][1][1], other)


def test_nan_on_one_rank_and_other_numbers_than_0_are_no_small_differences():
    zeros = np.zeros(3, np.float32)
    for ours, theirs in ((WEIGHTS, WEIGHTS * np.float32(np.nan)), (zeros, zeros + 2e-4)):
        found = _check([ours], [theirs.astype(np.float32)])
        assert all(isinstance(result, VariablesDiffer) for result, _ in found)
