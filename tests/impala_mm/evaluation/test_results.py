"""Rows of evaluations.jsonl are recorded whole, or the job is told."""

import resource

import pytest

from impala_mm.evaluation import results


def test_a_row_of_which_a_part_fits_on_the_disk_is_an_error_and_spoils_no_other(tmp_path):
    first = {"updates": 1, "options": {"a": 1}}
    path = results.append_row(tmp_path, first)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            results.append_row(tmp_path, {"updates": 2, "options": {"a": 1}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    last = {"updates": 3, "options": {"a": 1}}
    results.append_row(tmp_path, last)
    assert results.read_rows(tmp_path) == [first, last]
