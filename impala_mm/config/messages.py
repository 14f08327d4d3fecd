"""Texts from outside, prepared for messages: errors, tracebacks, values, what other hosts print.

Cells of a CSV, flags, paths, and what other hosts print may contain any character. `flags.refuse`
and the frontend call `escape` before they print such text, so that nothing in it can control the
user's terminal. Log files are written unchanged; of lines that are followed in a terminal,
`launcher.supervise.log_tail.for_terminal` leaves only the colours.
"""

import os
import re
import sys
import traceback
import unicodedata
from pathlib import Path

_OURS = Path(__file__).parents[1]
SHIPPED = Path(__file__).resolve().parents[2] / "launcher" / "project"  # of an installed package
# Packages of which no frame is the user's code.
_LIBRARIES = {"impala_mm", "nets", "tensorflow", "sonnet", "tree", "wrapt", "keras", "numpy"}


# In the environment of a program that one of the package's commands has started, and of all that it
# starts.
COMMANDS_VARIABLE = "IMPALA_MM_COMMANDS"


def program(frontend: bool = False) -> str:
    """Return how the user calls experiment.py, or the frontend, for a message that suggests it."""
    if COMMANDS_VARIABLE in os.environ or SHIPPED.exists():
        return "impala-mm-cluster" if frontend else "impala-mm"
    return f"python {'run_experiment_mm_raw.py' if frontend else 'experiment.py'}"


def join_lines(text: object) -> str:
    """Return the text in one line, with single spaces."""
    return " ".join(str(text).split())


def error_message(error: Exception) -> str:
    """Return an error's message in one line, or the name of its type if it has no message."""
    return join_lines(error) or type(error).__name__


def describe_error(error: BaseException) -> str:
    """Return an error's type and message in one line, such as "ValueError: bad action"."""
    return join_lines(f"{type(error).__name__}: {error}")


def is_users_file(filename: str) -> bool:
    """Return whether a file is neither ours, nor of gymnasium, gym or Python's import system."""
    packages = [sys.modules.get(name) for name in ("importlib", "gymnasium", "gym")]
    files = [getattr(package, "__file__", None) for package in packages]
    folders = [_OURS, *(Path(file).parent for file in files if file)]
    return not filename.startswith(("<frozen ", *(f"{folder}{os.sep}" for folder in folders)))


def users_traceback(error: BaseException) -> str:
    """Return an error's traceback from the first frame of the user's code on.

    Return an empty string if no frame is the user's, but all are ours, gymnasium's or Python's own.
    """
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    has_users = False
    while part:
        users = [is_users_file(frame.filename) for frame in part.stack]
        has_users = has_users or any(users)
        frames = part.stack[users.index(True) :] if True in users else []
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in frames if not frame.filename.startswith("<frozen ")]
        )
        part = part.__cause__ or part.__context__
    if isinstance(error, SyntaxError):  # of a file of the user's: it has no frame, but a line
        has_users = True
    return "".join(told.format()).rstrip() if has_users else ""


def users_place(error: BaseException) -> str:
    """Return the file and line of the innermost frame of a user's code, or an empty string."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _LIBRARIES and package not in sys.stdlib_module_names:
            place = f"{frame.f_code.co_filename}:{line}"
    return place


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
