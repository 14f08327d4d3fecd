"""A JSON file that is parsed once for each content, as a run's record and states are."""

import os
import time
from typing import NamedTuple

import pytest

from launcher.supervise.json_files import ParsedFile, from_json, write_json


@pytest.fixture
def read(tmp_path):
    """Return a file, a function that reads it, and the contents that were parsed."""
    path, parsed = tmp_path / "file.json", []
    file = ParsedFile(path, lambda content: parsed.append(content) or content)
    return path, file.read, parsed


def _age(path, seconds=10):
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_file_is_parsed_once_until_it_is_replaced(read):
    path, read, parsed = read
    for number in (1, 2):
        write_json(path, {"number": number})
        _age(path)  # the inode tells the second one from the first
        assert [read() for _ in range(3)] == [{"number": number}] * 3
    path.write_text('{"number": 3}')
    assert read() == {"number": 3}, "the same inode and size"
    assert len(parsed) == 3
    path.unlink()
    assert read() == {}


@pytest.mark.parametrize(("content", "age"), [('{"number": 1}', 0), ('{"number": 1]', 10)])
def test_a_file_that_was_written_a_moment_ago_or_is_damaged_is_parsed_again(read, content, age):
    path, read, _ = read
    path.write_text(content)
    _age(path, age)
    about = path.stat()
    read()
    path.write_text('{"number": 2}')
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # in the same tick of the clock
    assert read() == {"number": 2}


class _Inner(NamedTuple):
    lines: tuple[str, ...] = ()
    code: int = 1


class _Form(NamedTuple):
    name: str
    process: tuple[int, int] | None = None
    inner: _Inner | None = None
    share: float = 0.0
    more: dict[str, list[int]] | None = None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"name": "a"}, _Form("a")),
        (
            {"name": "a", "process": [1, 2], "share": 1, "of_a_newer_version": 3},
            _Form("a", (1, 2), share=1),
        ),
        (
            {"name": "a", "inner": {"lines": ["x"]}, "more": {"x": [1]}},
            _Form("a", inner=_Inner(("x",)), more={"x": [1]}),
        ),
        ({}, None),
        ({"name": None}, None),
        ({"name": "a", "process": [1]}, None),
        ({"name": "a", "process": [1, True]}, None),
        ({"name": "a", "inner": {"lines": "x"}}, None),
        ({"name": "a", "inner": []}, None),
        ({"name": "a", "share": "1"}, None),
        ({"name": "a", "more": {"x": [1.5]}}, None),
    ],
)
def test_what_a_file_contains_has_the_types_of_its_form(content, expected):
    assert from_json(_Form, content) == expected
