"""The console on which tables are printed."""

import os

from rich.console import Console

_FILE_COLUMNS = 200  # columns of a table that is not printed on a terminal


def make_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for messages in a file.

    A program such as `watch` reads the output for a terminal, and sets COLUMNS.
    """
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:  # rich would assume 80 columns
        console.width = _FILE_COLUMNS
    return console
