"""Reports between learners: what they tell about an update that does not end."""

from types import SimpleNamespace

import pytest

from impala_mm.learner.learner_reports import unfinished_update


@pytest.mark.parametrize(
    ("in_update", "message"),
    [
        ([0], ""),
        ([0, 0], ""),
        ([7], ": learner 0 did not finish update 7"),
        (
            [0, 7],
            ": learner 1 did not finish update 7, and may wait for a call of `exchange` that "
            "another learner does not make; a condition around it must be equal on all learners",
        ),
        ([7, 0, 7], ": learners 0 and 2 did not finish update 7, and may wait for a call of"),
    ],
)
def test_the_learners_whose_update_does_not_end_are_named(in_update, message):
    said = unfinished_update([SimpleNamespace(in_update=number) for number in in_update])
    assert said.startswith(message)
    assert bool(said) == bool(message)
