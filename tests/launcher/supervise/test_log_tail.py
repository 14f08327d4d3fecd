"""Logs that are followed from their beginning, or from some screenfuls before their end."""

from launcher.supervise.log_tail import LogTail, for_terminal


def test_a_log_is_followed_while_it_is_rotated(tmp_path):
    log, said = tmp_path / "a.log", []
    tail = LogTail(log)
    for begun in range(3):
        log.write_text("")
        for i in range(3):
            with log.open("a") as file:
                file.write(f"{begun}.{i}\n")
            said += tail.lines() if i == 0 else []
        log.rename(tmp_path / "a.log.1")
    assert [*said, *tail.lines()] == [f"{begun}.{i}" for begun in range(3) for i in range(3)]


def test_only_the_complete_lines_at_the_end_of_a_long_log_are_returned(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {i}\n" for i in range(1000)))
    assert LogTail(log, max_bytes=30).lines() == ["line 997", "line 998", "line 999"]
    assert len(LogTail(log, max_bytes=1 << 16).lines()) == 1000
    tail = LogTail(log, max_bytes=0)
    assert tail.lines() == []
    with log.open("a") as file:
        file.write("new\nnot comp")
    assert tail.lines() == ["new"]


def test_a_line_for_a_terminal_keeps_its_colours_and_can_control_nothing():
    kept = "\x1b[1;31mred\x1b[m\tübung 好 \ufffd\r"
    assert for_terminal(kept) == kept
    assert for_terminal("\x1b]52;c;cm0=\x07\x1b[2J\x9b2J\x1b[31") == (
        r"\x1b]52;c;cm0=\x07\x1b[2J\x9b2J\x1b[31"
    )
    assert for_terminal("10%\r20%\r\r") == "10%" + r"\r20%\r" + "\r", "the last ends the line"
    assert for_terminal("a\u200f\0\b\x7f") == r"a\u200f\x00\x08\x7f"
