"""Texts of other programs' errors and descriptions, prepared for our messages."""

import importlib.util
import os
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])


def one_line(text: object) -> str:
    """Return the text in one line, with single spaces."""
    return " ".join(str(text).split())


def error_message(error: Exception) -> str:
    """Return an error's message in one line, or the name of its type if it has no message."""
    return one_line(error) or type(error).__name__


def describe_error(error: BaseException) -> str:
    """Return an error's type and message in one line, such as "ValueError: bad action"."""
    return one_line(f"{type(error).__name__}: {error}")


def users_traceback(error: BaseException) -> str:
    """Return an error's traceback from the first frame of the user's code on.

    Return an empty string if no frame is the user's, but all are ours, gymnasium's or Python's own.
    """
    found_libraries = [importlib.util.find_spec(name) for name in ("gymnasium", "gym")]
    libraries = [spec.origin for spec in found_libraries if spec and spec.origin]
    folders = [str(Path(file).parent) for file in [*libraries, importlib.util.__file__]]
    inner = (*(f"{folder}{os.sep}" for folder in [*folders, _OURS]), "<frozen ")
    told = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = told
    found = False
    while each:
        outer = [not frame.filename.startswith(inner) for frame in each.stack]
        found = found or any(outer)
        frames = each.stack[outer.index(True) :] if True in outer else []
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in frames if not frame.filename.startswith("<frozen ")]
        )
        each = each.__cause__ or each.__context__
    if isinstance(error, SyntaxError):  # of a file of the user's: it has no frame, but a line
        found = True
    return "".join(told.format()).rstrip() if found else ""
