"""The check of an unroll's content: choices that exist, and finite numbers."""

import numpy as np
import pytest
import tensorflow as tf
import unrolls
from in_process import encoded

from impala_mm.data.trajectory import Entry, Unroll, UnrollCodec, UnrollSpec
from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.environments.action_parts import Box, Discrete, MultiDiscrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.choices import ChoiceSpec

_STEP = Entry(
    {"move": tf.TensorSpec([2], tf.int32), "push": tf.TensorSpec([3], tf.float32)},
    *(tf.TensorSpec([], t) for t in (tf.float32, tf.bool, tf.bool)),
    {"camera": tf.TensorSpec([4], tf.uint8), "speed": tf.TensorSpec([2], tf.float32)},
    tf.TensorSpec([], tf.bool),
    tf.TensorSpec([], tf.float32),
)
SPEC = UnrollSpec(3, 1, _STEP, (tf.TensorSpec([2], tf.float32),))
ACTIONS = ActionSpec(
    {
        "move": MultiDiscrete((2,), (3, 5), (0, 0)),
        "push": Box((3,), (-1.0,) * 3, (1.0,) * 3, "float32"),
    }
)


def _unroll():
    """Return an unroll's arrays, in which everything is right and extras are infinite."""

    def zeros(spec, length=()):
        return np.zeros([*length, *spec.shape], spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(lambda spec: zeros(spec, [4]), SPEC.step)
    entries.extras[:] = -np.inf
    entries.action["move"][:] = [2, 4]
    return Unroll(entries, tf.nest.map_structure(zeros, SPEC.start))


def _mistake(unroll, actions=ACTIONS, spec=SPEC, **how):
    return UnrollCheck(spec, actions, **how).mistake(encoded(UnrollCodec(spec), unroll))


@pytest.mark.parametrize(
    ("name", "array", "value"),
    [
        ("reward", lambda u: u.entries.reward, np.nan),
        ("observation/speed", lambda u: u.entries.observation["speed"][:, 1], np.inf),
        ("action/push", lambda u: u.entries.action["push"][:, 2], -np.inf),
        ("start/0", lambda u: u.start[0], np.nan),
    ],
)
def test_numbers_that_are_not_finite_are_found_by_name(name, array, value):
    unroll = _unroll()
    array(unroll)[-1] = value
    assert _mistake(unroll) == f"its {name} contains NaN or infinity"


def test_extras_may_be_infinite_and_are_searched_for_nan_if_that_is_asked_for():
    unroll = _unroll()
    assert _mistake(unroll) == _mistake(unroll, extras=True) == ""
    unroll.entries.extras[1] = np.nan
    assert _mistake(unroll) == ""
    assert _mistake(unroll, extras=True) == "its extras contains NaN"


@pytest.mark.parametrize("value", [-1, 500])
def test_a_choice_that_an_observation_cannot_be_is_found(value):
    spec = SPEC._replace(step=SPEC.step._replace(observation=ChoiceSpec((500, 500))))
    numbers = np.full([4, 2], 499, np.int32)
    unroll = _unroll()
    unroll = unroll._replace(entries=unroll.entries._replace(observation=numbers))

    assert _mistake(unroll, spec=spec) == ""
    numbers[2, 1] = value
    said = f"its observation contains {value}, and there are 500 choices"
    assert _mistake(unroll, spec=spec) == said


def test_an_observation_may_have_the_name_of_extras():
    spec = SPEC._replace(step=SPEC.step._replace(observation={"extras": SPEC.step.reward}))
    unroll = _unroll()
    unroll = unroll._replace(
        entries=unroll.entries._replace(observation={"extras": np.full(4, np.inf, np.float32)})
    )
    assert _mistake(unroll, spec=spec) == "its observation/extras contains NaN or infinity"


def test_choices_that_were_checked_before_need_not_be_checked_again():
    unroll = _unroll()
    unroll.entries.action["move"][2, 0] = 7
    assert _mistake(unroll, actions=None) == ""
    unroll.start[0][1] = np.nan
    assert _mistake(unroll, actions=None) == "its start/0 contains NaN or infinity"


@pytest.mark.parametrize(("element", "value"), [(0, 3), (0, -1), (1, 5)])
def test_choices_that_do_not_exist_are_found(element, value):
    unroll = _unroll()
    unroll.entries.action["move"][2, element] = value
    assert _mistake(unroll) == f"its action/move contains {value}, and there are 5 choices"


def test_any_bytes_of_the_right_size_are_checked():
    check = UnrollCheck(unrolls.SPEC, ActionSpec(Discrete(3)))
    assert check.mistake(unrolls.unroll(7)) == ""
    assert "its action contains -1" in check.mistake(b"\xff" * unrolls.CODEC.size)
