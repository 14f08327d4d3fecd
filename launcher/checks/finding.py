"""What a check found."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line."""

    what: str
    good: bool | None  # None: it will do, but should be known
    said: str
    remedy: str = ""
    where: str = ""  # place; empty: this machine, or the run as a whole
