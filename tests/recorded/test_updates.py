"""The updates of each algorithm, with each feature, are those that `record.py` has recorded."""

import functools

import pytest

from tests.recorded import record
from tests.recorded.cases import BASES, CASES, QUICK

_read = functools.cache(record.read)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name in QUICK else pytest.mark.slow)
        for case in CASES
    ],
)
def test_three_updates_are_those_that_were_recorded(case):
    problems = record.differences(_read(case.algorithm)[case.name], record.compute(case))
    assert not problems, "\n".join(problems[:20])


def test_what_is_recorded_has_a_case():
    recorded = {name for algorithm in BASES for name in _read(algorithm)}
    assert recorded == {case.name for case in CASES}
    assert recorded >= QUICK
