"""Text from outside in messages: no control character of it reaches the user's terminal."""

import pytest

from impala_mm.config import command_line, messages
from impala_mm.config.settings import Config


def test_characters_that_cannot_be_seen_are_escaped():
    text = "a\x1b[31mb\x07\0\u200f\ud800\r\x85ü\n\tc"
    assert messages.escape(text) == r"a\x1b[31mb\x07\x00\u200f\ud800\r\x85ü" + "\n\tc"
    assert messages.log_line("\x1b[33mWARN: x\x1b[0m\x1b[2J") == r"WARN: x\x1b[2J"
    assert messages.escape(messages.escape(text)) == messages.escape(text)


def test_a_long_value_is_cut_and_its_length_added():
    assert messages.quote("x\x1b") == r"'x\x1b'"
    assert messages.quote("x" * 61) == f"'{'x' * 60}'... (61 characters)"


def test_text_of_another_process_takes_one_line_of_bounded_length():
    assert messages.escape_line("a\x1b[2J\n\tb\u2028") == r"a\x1b[2J\n\tb\u2028"
    assert messages.escape_line("x" * 501) == "x" * 500 + "..."


@pytest.mark.parametrize("argument", ["--mode=\x1b[2J", "--\x1b[2J=1", "\x1b[2J"])
def test_a_refused_flag_is_shown_escaped(argument, capsys):
    with pytest.raises(SystemExit):
        command_line.parse(["experiment.py", argument], "", Config)
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert r"\x1b[2J" in said


def test_a_flag_that_is_not_utf8_is_refused(capsys):
    with pytest.raises(SystemExit):
        command_line.parse(["experiment.py", "--logdir=/a\udcff"], "", Config)
    said = capsys.readouterr().err
    assert said.startswith(r"error: --logdir=/a\udcff: it contains bytes that are not UTF-8")
