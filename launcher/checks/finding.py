"""The result of a check."""

from typing import NamedTuple


class Finding(NamedTuple):
    """The result of one check: one line of the table that `--check` prints."""

    subject: str
    ok: bool | None  # None: the run can start, but the user should know the message
    message: str
    remedy: str = ""  # how to fix it
    host_id: str = ""  # the host that was checked; empty: this machine, or the run itself
