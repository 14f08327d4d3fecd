"""A command on another host that reads a file of this one, over a connection that is there."""

import contextlib
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paramiko import Channel, Transport

_START_SECONDS = 30.0
_CHECK_SECONDS = 2.0  # between two looks whether the host is still there
_CHUNK = 1 << 15


class Readable(Protocol):
    """All that is asked of a file."""

    def read(self, size: int) -> bytes:
        """The next bytes; none at its end."""


def run_with_input(
    transport: "Transport",
    command: str,
    data: Readable,
    seconds: float,
    check_connection: Callable[[], None],
) -> tuple[int, str]:
    """Exit code and output, within so many seconds; `check_connection` raises where it is in vain.

    What paramiko raises goes through; TimeoutError where it takes too long.
    """
    until = time.monotonic() + seconds
    channel = transport.open_session(timeout=_START_SECONDS)
    channel.settimeout(_START_SECONDS)
    channel.set_combine_stderr(True)
    channel.exec_command(f"exec sh -c {shlex.quote(command)}")
    channel.settimeout(_CHECK_SECONDS)

    def check() -> None:
        check_connection()
        if time.monotonic() > until:
            raise TimeoutError(f"it was not done in {seconds:g} s")

    while (chunk := data.read(_CHUNK)) and not channel.exit_status_ready():
        while chunk:
            check()
            chunk = chunk[_send(channel, chunk) :]
    with contextlib.suppress(OSError):  # it has ended, and says why
        channel.shutdown_write()
    output = b""
    while chunk := _receive(channel, check):
        output += chunk
    while not channel.exit_status_ready():
        check()
        time.sleep(0.02)
    return channel.recv_exit_status(), output.decode(errors="replace")


def _send(channel: "Channel", chunk: bytes) -> int:
    """How much of it went."""
    try:
        return channel.send(chunk)
    except TimeoutError:
        return 0
    except OSError:  # it does not read any more
        return len(chunk)


def _receive(channel: "Channel", check: Callable[[], None]) -> Any:
    while True:
        check()
        with contextlib.suppress(TimeoutError):
            return channel.recv(_CHUNK)
