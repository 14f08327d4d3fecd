"""What a check found."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line."""

    subject: str
    ok: bool | None  # None: it will do, but should be known
    message: str
    remedy: str = ""
    host_id: str = ""  # host id; empty: this machine, or the run as a whole
