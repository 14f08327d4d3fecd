"""Logs as the page reads them: the end, what follows, what is before, and a search."""

import dataclasses

import pytest
from large_run import LargeRun
from run_states import record_foreground

from launcher.dashboard import log_reader
from launcher.dashboard.run_finder import FoundRun


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "actor-0.log"
    path.write_text("".join(f"line {i}\n" for i in range(20_000)))
    return path


def _texts(part):
    return [line["text"] for line in part["lines"]]


def test_the_end_is_read_and_then_what_is_appended(log):
    part = log_reader.read_part(log)
    assert _texts(part)[-1] == "line 19999"
    assert _texts(part)[0].startswith("line ")
    assert 60_000 < part["end"] - part["begin"] <= 65_536
    content = log.read_bytes()
    for line in part["lines"][::500]:
        assert content[line["at"] :].startswith(line["text"].encode() + b"\n")
    with log.open("a") as file:
        file.write("next\nhalf")
    part = log_reader.read_part(log, after=part["end"])
    assert _texts(part) == ["next"]
    with log.open("a") as file:
        file.write(" whole\n")
    assert _texts(log_reader.read_part(log, after=part["end"])) == ["half whole"]


def test_earlier_parts_join_without_a_gap(log):
    part, found = log_reader.read_part(log), []
    found = _texts(part)
    while part["begin"]:
        part = log_reader.read_part(log, before=part["begin"])
        found = _texts(part) + found
    assert found == [f"line {i}" for i in range(20_000)]
    assert log_reader.read_part(log, before=-1)["lines"] == []
    assert log_reader.read_part(log, after=-1) == log_reader.read_part(log, after=0)


def test_a_line_that_is_longer_than_a_part_is_passed_both_ways(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"first\n" + b"y" * 200_000 + b"\nlast\n")
    size, at, texts = log.stat().st_size, 0, []
    for _ in range(9):
        part = log_reader.read_part(log, after=at)
        assert part["begin"] == at
        at, texts = part["end"], texts + _texts(part)
    assert (at, texts[0], texts[-1]) == (size, "first", "last")
    part, texts = log_reader.read_part(log), []
    at = part["end"]
    for _ in range(9):
        part = log_reader.read_part(log, before=at)
        assert part["end"] == at
        at, texts = part["begin"], _texts(part) + texts
    assert (at, texts[0], texts[-1]) == (0, "first", "last")
    log.write_bytes(b"y" * 200_000)
    part = log_reader.read_part(log)
    assert log_reader.read_part(log, after=part["begin"])["end"] > part["begin"]


def test_a_log_that_was_begun_anew_has_another_inode(log):
    before = log_reader.read_part(log)
    log.rename(log.with_suffix(".1"))
    log.write_text("new\n")
    part = log_reader.read_part(log, after=before["end"])
    assert part["inode"] != before["inode"]
    assert _texts(part) == ["new"]


def test_a_search_finds_the_last_lines_in_any_case_across_blocks(log, monkeypatch):
    monkeypatch.setattr(log_reader, "_BLOCK_BYTES", 1000)
    found = log_reader.search(log, "LINE 199")
    numbers = [199, *range(1990, 2000), *range(19900, 20000)]
    assert _texts(found) == [f"line {i}" for i in numbers]
    content = log.read_bytes()
    assert all(content[line["at"] :].startswith(line["text"].encode()) for line in found["lines"])
    assert len(log_reader.search(log, "line")["lines"]) == 200
    assert _texts(log_reader.search(log, "line"))[-1] == "line 19999"
    size = len(content)
    assert log_reader.search(log, "nowhere") == {"lines": [], "searched": size, "size": size}


def test_bytes_that_are_no_text_and_endless_lines_are_shown_as_far_as_possible(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff\xfe\x00\r\n" + b"y" * 9000 + b"\n\n")
    bad, long, empty = _texts(log_reader.read_part(log))
    assert bad == "\ufffd\ufffd\x00"
    assert long == "y" * 4000 + "..."
    assert empty == ""


def _process(name, log):
    return {"name": name, "log": str(log)}


def test_only_logs_of_the_run_are_found(tmp_path):
    folder, outside = tmp_path / "run", tmp_path / "elsewhere"
    for name in ("run/learner", "run/actor-0", "elsewhere/actor-1", "elsewhere/daemon", "secret"):
        (path := tmp_path / f"{name}.log").parent.mkdir(exist_ok=True)
        path.touch()
    processes = [
        _process("actor-0", outside / "actor-1.log"),
        _process("actor-1", outside / "actor-1.log"),
        _process("actor-2", outside / "daemon.log"),  # the log of something else
        _process("actor-3", "/host/b/actor-3.log"),  # not copied
        _process("../secret", tmp_path / "secret.log"),
    ]
    run = record_foreground(tmp_path / "foreground", folder, [each["name"] for each in processes])
    found = log_reader.find_logs(FoundRun("k", "n", folder, run), {"processes": processes})
    assert found == {
        "actor-0": folder / "actor-0.log",
        "actor-1": outside / "actor-1.log",
        "learner": folder / "learner.log",
    }


def test_what_a_state_of_another_host_says_names_no_file(tmp_path):
    large = LargeRun("night", tmp_path / "run", actors=2)
    record = large.run.record
    record.processes[2] = dataclasses.replace(record.processes[2], place="node1")
    large.run.write_record(record)
    (outside := tmp_path / "elsewhere").mkdir()
    for name in ("actor-0", "actor-1"):
        (outside / f"{name}.log").touch()
    processes = [_process(name, outside / f"{name}.log") for name in ("actor-0", "actor-1")]
    found = FoundRun("k", "night", large.logdir, run=large.run)
    assert log_reader.find_logs(found, {"processes": processes}) == {
        "actor-0": outside / "actor-0.log"
    }
