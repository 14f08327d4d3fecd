"""Text from outside as messages show it: nothing in it can control the user's terminal.

Cells of a CSV, flags, paths, and what other hosts print may contain any character. `flags.refuse`
and the frontend call this before they print such text. Log files are written unchanged; of lines
that are followed in a terminal, `launcher.node.log_tail.for_terminal` leaves only the colours.
"""

import re
import unicodedata

_MAX_QUOTED = 60  # characters of a value that a message quotes
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def escape(text: str) -> str:
    r"""Return a message in which each character that cannot be seen is written as \x1b or \u200f.

    Line breaks and tabs are kept, since messages may have several lines.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def log_line(text: str) -> str:
    """Return a line of a log as a message shows it: without colours, other characters escaped."""
    return escape(_COLOURS.sub("", text))


def escape_line(text: str, most: int = 500) -> str:
    """Return text of another process as part of a line: escaped, without line breaks, and cut."""
    shown = text if len(text) <= most else f"{text[:most]}..."
    return escape(shown.replace("\n", "\\n").replace("\t", "\\t"))


def quote(value: str) -> str:
    """Return a value in quotation marks and escaped; a long one is cut, and its length is added."""
    if len(value) <= _MAX_QUOTED:
        return repr(value)
    return f"{value[:_MAX_QUOTED]!r}... ({len(value):,} characters)"


def describe_character(character: str) -> str:
    """Return a character's code point and, if it has one, its name."""
    name = unicodedata.name(character, "")
    return f"U+{ord(character):04X}" + f" ({name})" * bool(name)
