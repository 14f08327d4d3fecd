"""Another order of actions against NumPy."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from impala_mm.algorithms.feature_settings import TeacherSettings, action_numbers
from impala_mm.data.trajectory import Entry
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import level_spec
from impala_mm.teachers.load import Reordered
from impala_mm.teachers.teacher import NoTeacher, PlayingTeacher, Request


class _Fixed(PlayingTeacher):
    """A teacher of fixed logits that keeps the entries that it reads."""

    name, notes, greedy = "fixed", (), False

    def __init__(self, logits):
        self._logits = tf.constant(logits)

    def parameters(self, entries):
        self.read = entries
        return self._logits

    def step(self, entry, state):
        self.read = entry
        return self._logits[0], state


def _orders(student, teacher):
    """Return a strategy of orders for these numbers of actions."""
    numbers = st.permutations(range(teacher)).map(lambda found: found[:student])
    gaps = st.sets(st.integers(0, student - 1), max_size=student - 1)

    def made(found, without):
        return [None if i in without else n for i, n in enumerate(found)]

    return st.builds(made, numbers, gaps)


@settings(max_examples=30, deadline=None)
@given(order=_orders(4, 6), seed=st.integers(0, 2**32 - 1))
def test_a_teacher_reads_and_answers_in_its_own_order(order, seed):
    rng = np.random.default_rng(seed)
    inner = _Fixed(rng.normal(0, 3, (3, 2, 6)).astype(np.float32))
    made = Reordered(inner, order, 6)
    action, mask = rng.integers(0, 4, (3, 2)), rng.random((3, 2, 4)) < 0.5
    entries = Entry(tf.constant(action), (), (), (), (), (), (), tf.constant(mask))
    answer = special.softmax(made.parameters(entries).numpy(), -1)
    theirs = special.softmax(inner._logits.numpy(), -1)
    known = [n for n in order if n is not None]
    for ours, n in enumerate(order):
        share = 0.0 if n is None else theirs[..., n] / theirs[..., known].sum(-1)
        np.testing.assert_allclose(answer[..., ours], share, atol=1e-6)
    for n in range(6):
        allowed = mask[..., order.index(n)] if n in order else np.zeros_like(mask[..., 0])
        np.testing.assert_array_equal(inner.read.mask[..., n], allowed)
    expected = [[order[a] or 0 for a in row] for row in action]
    np.testing.assert_array_equal(inner.read.action, expected)
    step, _ = made.step(tf.nest.map_structure(lambda x: x[0], entries), ())
    np.testing.assert_allclose(special.softmax(step.numpy(), -1), answer[0], atol=1e-6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b", "it must be the number of the teacher's action for each action of the student"),
        ("0,-1", "it must be the number"),
        ("0,1,1", "each of the teacher's actions may stand in it once"),
        ("-,-", "it must name an action of the teacher"),
    ],
)
def test_texts_that_are_no_order_are_refused(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        action_numbers(text)
    assert action_numbers("2, 0,-") == (2, 0, None)
    assert action_numbers("") == ()


def test_an_order_for_other_numbers_of_actions_is_refused():
    def fit(student, teacher):
        spec = level_spec("catch")._replace(actions=ActionSpec(Discrete(student)))
        return Request("", Path(), TeacherSettings(), spec, (2, 0, None)).fit(teacher)

    assert fit(3, 3).actions.discrete == fit(3, None).actions.discrete == 3
    with pytest.raises(NoTeacher, match="it names 3 actions, and the student has 4"):
        fit(4, 3)
    with pytest.raises(NoTeacher, match="the teacher has no action 2: its actions are 0 to 1"):
        fit(3, 2)
