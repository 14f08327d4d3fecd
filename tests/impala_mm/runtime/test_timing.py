"""Times in words."""

from impala_mm.runtime.timing import format_duration


def test_a_time_is_in_the_unit_in_which_it_reads_best():
    seconds = (-1, 73.4, 120, 5760, 9e3)
    assert [*map(format_duration, seconds)] == ["0 s", "73 s", "2 min", "96 min", "2.5 h"]
