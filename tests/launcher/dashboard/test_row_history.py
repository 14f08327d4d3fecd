"""The rows that a dashboard keeps of metrics.jsonl: read once, bounded, as the file has them."""

import json

import numpy as np
import pytest

from launcher.dashboard import row_history
from launcher.dashboard.row_history import RowHistory


def _rows(begin, end, **more):
    return [{"frames": 10.0 * i, "seconds": float(i), "a": i**2, **more} for i in range(begin, end)]


def _append(path, rows):
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_a_short_history_is_the_file(path):
    history = RowHistory(path)
    assert history.read() == []
    assert history.columns(["a"]) == {}
    rows = [row | ({"b": 0.5} if i % 2 else {}) for i, row in enumerate(_rows(0, 100, verdict="x"))]
    _append(path, rows)
    assert history.read() == rows
    assert history.read() == []
    assert history.last == rows[-1]
    columns = history.columns(["frames", "a", "b", "missing"])
    assert columns["frames"] == {"mean": [row["frames"] for row in rows]}
    assert columns["a"] == {"mean": [row["a"] for row in rows]}
    assert columns["b"] == {"mean": [row.get("b") for row in rows]}
    assert "missing" not in columns
    assert history.keys == ["a", "b", "frames", "seconds"]


def test_a_long_history_is_the_mean_lowest_and_highest_value_of_equal_bins(path):
    history, values = RowHistory(path, bins=8), []
    for begin in range(0, 1000, 10):
        rows = _rows(begin, begin + 10)
        values += [float(row["a"]) for row in rows]
        _append(path, rows)
        history.read()
        column = history.columns(["a"])["a"]
        assert len(column["mean"]) <= 2 * 8
        assert column["mean"][-1] == values[-1], "the last point is the last row"
    size = 64  # 1,000 rows in at most 16 bins
    whole = np.array(values[: 1000 // size * size], np.float64).reshape(-1, size)
    for name, reduce in (("mean", np.mean), ("low", np.min), ("high", np.max)):
        np.testing.assert_allclose(column[name][:-1], reduce(whole, axis=1), rtol=1e-8)


def test_what_was_read_is_not_read_again(path):
    history = RowHistory(path)
    _append(path, _rows(0, 10))
    history.read()
    with path.open("r+b") as file:
        file.write(b" " * (path.stat().st_size - 1))
    _append(path, _rows(10, 12))
    assert [row["seconds"] for row in history.read()] == [10, 11]
    assert history.columns(["seconds"])["seconds"]["mean"] == [float(i) for i in range(12)]


def test_a_row_that_is_being_written_is_read_once_it_is_complete(path):
    history = RowHistory(path)
    text = json.dumps(_rows(1, 2)[0])
    path.write_text(text[:9])
    assert history.read() == []
    path.write_text(text + "\n")
    assert len(history.read()) == 1


def test_what_is_no_row_is_left_out(path):
    history = RowHistory(path)
    whole = '{"fra{"frames": 2.0, "seconds": 3, "a": true, "b": NaN, "c": "inf"}'
    lines = ['{"half', "[1]", "5", '{"frames": 1}', '{"frames": "x", "seconds": 1}', whole]
    path.write_text("\n".join(lines) + "\n")
    rows = history.read()
    assert [row["frames"] for row in rows] == [2.0]
    assert history.keys == ["frames", "seconds"]


def test_the_rows_of_a_resumed_run_replace_those_after_its_checkpoint(path):
    history = RowHistory(path)
    resumed = [row | {"a": -1} for row in _rows(4, 8)]
    _append(path, [*_rows(0, 10), *resumed])
    history.read()
    columns = history.columns(["seconds", "a"])
    assert columns["seconds"]["mean"] == [float(i) for i in range(8)]
    assert columns["a"]["mean"] == [0, 1, 4, 9, -1, -1, -1, -1]
    assert history.seconds_at(55.0) == 5.5
    assert history.frames_at(2.25) == 22.5
    assert history.frames_at(8.0) is None


def test_a_file_that_was_replaced_is_read_from_its_beginning(path):
    history = RowHistory(path)
    _append(path, _rows(0, 9))
    history.read()
    path.unlink()
    _append(path, _rows(2, 4))
    history.read()
    assert history.columns(["seconds"])["seconds"]["mean"] == [2, 3]


def test_of_a_large_file_some_rows_are_read_and_then_what_is_appended(path, monkeypatch):
    parsed = []
    parse = row_history.parse_lines
    monkeypatch.setattr(row_history, "parse_lines", lambda t: parsed.extend(t) or parse(t))
    _append(path, _rows(0, 15_000))
    history = RowHistory(path, bins=50, max_bytes=100_000)
    history.read()
    assert len(parsed) < 2000
    seconds = history.columns(["seconds"])["seconds"]["mean"]
    assert seconds == sorted(seconds)
    assert len(seconds) >= 50
    assert seconds[0] == 0
    assert seconds[-1] == 14_999
    assert np.diff(seconds).max() < 3 * 15_000 / 50
    _append(path, _rows(15_000, 30_000))
    history.read()
    seconds = history.columns(["seconds"])["seconds"]["mean"]
    assert len(seconds) <= 101
    assert seconds[-1] == 29_999
    assert np.diff(seconds).max() < 4 * 15_000 / 50, "bins of old and new rows are alike"


def test_rows_of_the_clock_are_kept_when_a_run_is_resumed_from_earlier_frames(path):
    history = RowHistory(path, replaces=False)
    _append(path, [*_rows(0, 10), *_rows(5, 8)])
    history.read()
    assert history.columns(["seconds"])["seconds"]["mean"] == [*range(10), 5, 6, 7]
