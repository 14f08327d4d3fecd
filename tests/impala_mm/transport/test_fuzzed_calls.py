"""Calls of a learner's functions that no actor should make, by somebody with an actor's token.

After each the learner answers other calls. None ends it, holds it up or lets its memory grow.
"""

import fuzzed
import pytest
from deadlines import within
from hypothesis import HealthCheck, given, settings

# Examples of one learner, which hypothesis does not shrink for minutes.
_OPTIONS = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@pytest.fixture(scope="module")
def taking_unrolls():
    made = fuzzed.Served("unrolls")
    yield made
    made.end()


def _try(learner, call):
    function, arguments = call
    with within(20):
        answer = learner.call(function, *arguments)
        assert answer.content or answer.text
        learner.answers()


def test_wrong_calls_are_answered_and_other_calls_too(taking_unrolls):
    @settings(max_examples=25, **_OPTIONS)
    @given(fuzzed.wrong_call(taking_unrolls))
    def each(call):
        _try(taking_unrolls, call)

    each()
    assert "Traceback" not in taking_unrolls.printed()
