"""Types of the functions that are passed along to report what happens."""

from collections.abc import Callable

Say = Callable[[str], None]  # shows the user a line
OnLine = Callable[[str], None]  # is called with each line that a program prints
