"""Types of the functions that are passed along to report what happens."""

from collections.abc import Callable

Say = Callable[[str], None]  # shows the user a line
OnLine = Callable[[str], None]  # receives each line that a program prints
