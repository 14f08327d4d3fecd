"""Runs a command on another host that reads a local file, over an existing connection."""

import contextlib
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paramiko import Channel, Transport

_START_SECONDS = 30.0
_CHECK_SECONDS = 2.0  # seconds between two checks of the connection
_CHUNK = 1 << 15


class Readable(Protocol):
    """A file that can be read."""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""


def run_with_input(
    transport: "Transport",
    command: str,
    data: Readable,
    seconds: float,
    check_connection: Callable[[], None],
) -> tuple[int, str]:
    """Run a command that reads `data`, and return its exit code and output.

    Raises TimeoutError after `seconds`, and the exceptions of paramiko and of `check_connection`,
    which is called while waiting.
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
            raise TimeoutError(f"the command did not finish within {seconds:g} s")

    while (chunk := data.read(_CHUNK)) and not channel.exit_status_ready():
        while chunk:
            check()
            chunk = chunk[_send(channel, chunk) :]
    with contextlib.suppress(OSError):  # the command has ended; its output says why
        channel.shutdown_write()
    output = b""
    while chunk := _receive(channel, check):
        output += chunk
    while not channel.exit_status_ready():
        check()
        time.sleep(0.02)
    return channel.recv_exit_status(), output.decode(errors="replace")


def _send(channel: "Channel", chunk: bytes) -> int:
    """Send data, and return how many bytes were accepted."""
    try:
        return channel.send(chunk)
    except TimeoutError:
        return 0
    except OSError:  # the command does not read any more
        return len(chunk)


def _receive(channel: "Channel", check: Callable[[], None]) -> Any:
    while True:
        check()
        with contextlib.suppress(TimeoutError):
            return channel.recv(_CHUNK)
