"""Texts of other programs' errors and descriptions, brought into one line for our messages."""


def one_line(text: object) -> str:
    """Return the text in one line, with single spaces."""
    return " ".join(str(text).split())


def error_message(error: Exception) -> str:
    """Return an error's message in one line, or the name of its type if it has no message."""
    return one_line(error) or type(error).__name__


def describe_error(error: Exception) -> str:
    """Return an error's type and message in one line, such as "ValueError: bad action"."""
    return one_line(f"{type(error).__name__}: {error}")
