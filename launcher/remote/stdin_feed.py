"""A command on another host that reads a file of this one, over a connection that is there."""

import contextlib
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paramiko import Channel, Transport

_START_SECONDS = 30.0
_LOOK_SECONDS = 2.0  # between two looks whether the host is still there
_PIECE = 1 << 15


class Readable(Protocol):
    """All that is asked of a file."""

    def read(self, size: int) -> bytes:
        """The next bytes; none at its end."""


def feed(
    transport: "Transport",
    command: str,
    data: Readable,
    seconds: float,
    stay_in_touch: Callable[[], None],
) -> tuple[int, str]:
    """Exit code and output, within so many seconds; `stay_in_touch` raises where it is in vain.

    What paramiko raises goes through; TimeoutError where it takes too long.
    """
    until = time.monotonic() + seconds
    channel = transport.open_session(timeout=_START_SECONDS)
    channel.settimeout(_START_SECONDS)
    channel.set_combine_stderr(True)
    channel.exec_command(f"exec sh -c {shlex.quote(command)}")
    channel.settimeout(_LOOK_SECONDS)

    def look() -> None:
        stay_in_touch()
        if time.monotonic() > until:
            raise TimeoutError(f"it was not done in {seconds:g} s")

    while (piece := data.read(_PIECE)) and not channel.exit_status_ready():
        while piece:
            look()
            piece = piece[_send(channel, piece) :]
    with contextlib.suppress(OSError):  # it has ended, and says why
        channel.shutdown_write()
    said = b""
    while piece := _received(channel, look):
        said += piece
    while not channel.exit_status_ready():
        look()
        time.sleep(0.02)
    return channel.recv_exit_status(), said.decode(errors="replace")


def _send(channel: "Channel", piece: bytes) -> int:
    """How much of it went."""
    try:
        return channel.send(piece)
    except TimeoutError:
        return 0
    except OSError:  # it does not read any more
        return len(piece)


def _received(channel: "Channel", look: Callable[[], None]) -> Any:
    while True:
        look()
        with contextlib.suppress(TimeoutError):
            return channel.recv(_PIECE)
