"""The channel to the agent on another host: a program that an SSH connection starts (`agent_main`).

`remote_node` sends it calls. `order_link` is the other kind of channel.
"""

import importlib.util
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from launcher.node.agent_main import READY_LINE
from launcher.plan import project
from launcher.remote import agent_bundle
from launcher.remote.failures import HostUnavailable
from launcher.remote.stdin_feed import Readable, run_with_input
from launcher.ssh.ssh_config import Settings, Target, Unreachable

if TYPE_CHECKING:
    from paramiko import Channel

SILENT_SECONDS = 12.0  # seconds without any message after which a connection counts as lost
_START_SECONDS = 30.0  # timeout for the host's Python to start


class AgentChannel(Protocol):
    """An open channel to what answers the calls on a host."""

    login: str  # by what it was opened, as messages call it

    def send(self, data: bytes) -> None:
        """Send lines; raise any error."""

    def lines(self) -> Iterator[bytes]:
        """Yield lines until the channel is closed; raise any error, TimeoutError after silence."""

    def close(self) -> None:
        """Close the channel."""


class SshChannel:
    """An SSH connection, and the agent that it has started."""

    def __init__(self, target: Target, settings: Settings, pythons: list[str], name: str):
        """Connect, and start the agent for the run of this name. Raises HostUnavailable.

        `pythons`: Python programs that the host may have, the best first.
        """
        if not importlib.util.find_spec("paramiko"):
            raise HostUnavailable(
                f"paramiko, which connects, is missing: {project.INSTALL_LAUNCHER}"
            )
        from launcher.ssh.connection import connect  # noqa: PLC0415 - paramiko takes a while

        try:
            self._client, route, self.login = connect(target, settings)
        except Unreachable as error:
            raise HostUnavailable(str(error)) from None
        try:
            transport = self._client.get_transport()
            assert transport
            self._channel = transport.open_session(timeout=_START_SECONDS)
            self._channel.settimeout(_START_SECONDS)
            self._channel.exec_command(agent_bundle.start_command(pythons))
            self._channel.sendall(agent_bundle.bundle_header(name) + agent_bundle.bundle())
            self._wait_until_ready()
        except HostUnavailable:
            self._client.close()
            raise
        except Exception as error:  # paramiko raises many things, sockets others
            self._client.close()
            what = str(error) or type(error).__name__
            raise HostUnavailable(
                f"{route.host}: could not start Python on the host: {what}"
            ) from None

    def _wait_until_ready(self) -> None:
        """Skip what the login shell prints, until the agent reports that it is ready."""
        self._file = self._channel.makefile("rb")
        printed = []
        for line in self._file:
            text = line.decode(errors="replace").strip()
            if text == READY_LINE:
                self._channel.settimeout(SILENT_SECONDS)
                return
            printed.append(text)
        errors = self._channel.makefile_stderr("rb").read(4000).decode(errors="replace")
        last = [*printed, *errors.splitlines()][-1:] or ["no output"]
        host = self._client.get_transport().getpeername()[0]  # type: ignore[union-attr]
        raise HostUnavailable(f"{host}: could not start Python on the host: {last[0].strip()}")

    def send(self, data: bytes) -> None:
        """Send lines to the agent."""
        self._channel.sendall(data)

    def lines(self) -> Iterator[bytes]:
        """Yield the agent's lines."""
        return iter(self._file)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def run_with_input(
        self, command: str, data: Readable, seconds: float, check: Callable[[], None]
    ) -> tuple[int, str]:
        """Run another command on this connection, fed from `data`; `check` raises if it is lost."""
        transport = self._client.get_transport()
        assert transport
        return run_with_input(transport, command, data, seconds, check)

    def open_program(self, command: str) -> "Channel":
        """Start another command on this connection."""
        transport = self._client.get_transport()
        assert transport
        channel = transport.open_session(timeout=_START_SECONDS)
        channel.settimeout(_START_SECONDS)
        channel.exec_command(f"exec sh -c {shlex.quote(command)}")
        return channel
