"""Files with an object per line are read even where a process was killed while it wrote."""

from impala_mm.records.run_contents import drop_replaced, read_json_lines


def test_lines_that_were_cut_off_cost_themselves_alone(tmp_path):
    path = tmp_path / "rows"
    path.write_text('{"a": 1}\n[2]\n5\n\n{"a": 3, "b{"a": 4}\n{"a": 5, "b": {}}\n{"a": 6, "hal')
    assert read_json_lines(path) == [{"a": 1}, {"a": 4}, {"a": 5, "b": {}}]

    path.write_text('{"a": 1, "o": {"b"{"a": 2, "o": {"b": 1}}\n')
    assert read_json_lines(path) == [{"a": 2, "o": {"b": 1}}]


def test_rows_that_a_resumed_run_made_again_count_once():
    """It was killed after 40 frames, and went on from the checkpoint of 20."""
    rows = [{"frames": n, "seconds": n / 10} for n in (10, 20, 30, 40, 25, 35)]
    assert [row["frames"] for row in drop_replaced(rows)] == [10, 20, 25, 35]
    assert drop_replaced([]) == []
