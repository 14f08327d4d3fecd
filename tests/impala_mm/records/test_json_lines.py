"""Files with an object per line are read even where a process was killed while it wrote."""

import pytest

from impala_mm.records.json_lines import read_json_lines


def test_lines_that_were_cut_off_cost_themselves_alone(tmp_path):
    path = tmp_path / "rows"
    path.write_text('{"a": 1}\n[2]\n5\n\n{"a": 3, "b{"a": 4}\n{"a": 5, "b": {}}\n{"a": 6, "hal')
    assert read_json_lines(path) == [{"a": 1}, {"a": 4}, {"a": 5, "b": {}}]


def test_a_file_that_is_not_there_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json_lines(tmp_path / "rows")
