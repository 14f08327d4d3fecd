"""The groups of an algorithm's variables must not contradict each other."""

import pytest
import tensorflow as tf

from impala_mm.data.variables import BadVariables, Variables


def test_groups_that_contradict_each_other_are_refused_by_the_variables_name():
    weight, target, count = (tf.Variable(0.0, name=name) for name in ("weight", "target", "count"))
    right = Variables([weight], [target], acting=[weight], weights=[target], local=[count])
    right.check()
    with pytest.raises(BadVariables, match=r"target:0 is local, and also trained or carried"):
        right._replace(local=[target]).check()
    with pytest.raises(BadVariables, match=r"count:0 is among acting, but it is not trained or"):
        right._replace(acting=[count]).check()
    with pytest.raises(BadVariables, match=r"weight:0 is among weights, but it is not carried"):
        right._replace(weights=[weight]).check()
