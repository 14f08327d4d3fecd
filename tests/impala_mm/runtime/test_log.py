"""Logs are bounded, and the newest lines are kept."""

import io
import re
from types import SimpleNamespace

import pytest

from impala_mm.runtime.log import BoundedLog, ProcessLogger, rotate_if_long


def test_a_log_that_is_too_long_is_moved_and_a_new_one_begins(tmp_path):
    log = BoundedLog(tmp_path / "learner.log", max_mb=200 / 2**20)
    for number in range(20):
        log.write(f"line {number}")
    kept = [path.read_text() for path in (tmp_path / "learner.log.1", tmp_path / "learner.log")]
    assert all(len(text) <= 230 for text in kept)
    numbers = [int(n) for n in re.findall(r"line (\d+)", "".join(kept))]
    assert numbers == list(range(numbers[0], 20))
    assert len(numbers) > 5


def test_a_process_that_has_the_log_open_appends_to_the_new_one(tmp_path):
    path = tmp_path / "actor-0.log"
    with path.open("ab", buffering=0) as appending:
        appending.write(b"x" * 100)
        rotate_if_long(path, max_bytes=50)
        appending.write(b"after")
    assert path.read_bytes() == b"after"
    assert (tmp_path / "actor-0.log.1").read_bytes() == b"x" * 100
    rotate_if_long(path, max_bytes=50)
    assert path.read_bytes() == b"after", "it is short"
    rotate_if_long(tmp_path / "none", max_bytes=50)


def test_a_line_is_printed_and_logged_with_the_time_and_cannot_control_the_terminal(
    tmp_path, capsys
):
    _sayer(tmp_path)("a\x1b]0;owned\x07\x1b[2J\r\u200f\nb")
    shown = r"[learner 0] a\x1b]0;owned\x07\x1b[2J\r\u200f" + "\nb\n"
    assert capsys.readouterr().out == shown
    time, line = (tmp_path / "learner.log").read_text().split(" [", 1)
    assert f"[{line}" == shown
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", time)


def _sayer(folder):
    say = ProcessLogger("learner 0")
    say.log = BoundedLog(folder / "learner.log", max_mb=1)
    return say


@pytest.mark.parametrize("error", [ValueError("closed"), OSError(5, "Input/output error")])
def test_a_stdout_that_is_closed_or_whose_terminal_is_gone_is_no_error(
    tmp_path, monkeypatch, error
):
    """After SIGHUP, which saves and stops the run, every print fails."""

    class Gone(io.StringIO):
        def write(self, text):
            raise error

    say = _sayer(tmp_path)
    monkeypatch.setattr("sys.stdout", Gone())
    say("saved")
    assert "saved" in (tmp_path / "learner.log").read_text()


def test_a_line_is_one_write_so_that_lines_of_other_processes_do_not_enter_it(monkeypatch):
    written = []
    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=written.append, flush=lambda: None))
    ProcessLogger("learner")("a\nb")
    assert [text for text in written if text] == ["[learner] a\nb\n"]
