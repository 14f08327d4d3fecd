"""Times in words."""

import pytest

from impala_mm.runtime.timing import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (73.4, "73 s"),
        (120, "2 min"),
        (720, "12 min"),
        (5760, "96 min"),
        (9e3, "2.5 h"),
    ],
)
def test_a_time_is_in_the_unit_in_which_it_reads_best(seconds, text):
    assert format_duration(seconds) == text
