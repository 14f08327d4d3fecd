"""The frontend's output: messages and tables. `log_tail.for_terminal` is for lines of logs."""

import os
import select
import stat

from rich.console import Console

from impala_mm.config.messages import escape

_FILE_COLUMNS = 200  # columns of a table that is not printed on a terminal


def say(message: str) -> None:
    """Print a message; what in it could control the terminal is escaped."""
    print(escape(message), flush=True)


def check_reader() -> None:
    """Raise BrokenPipeError if stdout is a pipe whose reader has exited."""
    poll = select.poll()
    poll.register(1, 0)
    if poll.poll(0) and stat.S_ISFIFO(os.fstat(1).st_mode):
        raise BrokenPipeError


def discard_output() -> None:
    """Print nothing any more: the reader of the output has exited."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def make_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for messages in a file.

    A program such as `watch` reads the output for a terminal, and sets COLUMNS.
    """
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:  # rich would assume 80 columns
        console.width = _FILE_COLUMNS
    return console
