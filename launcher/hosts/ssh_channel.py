"""The channel to the agent on another host: a program that an SSH connection starts (`agent_main`).

`remote_node` sends it calls.
"""

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.hosts import agent_bundle
from launcher.hosts.ssh_config import Settings, Target, Unreachable
from launcher.plan import project
from launcher.supervise.agent_main import READY_LINE

if TYPE_CHECKING:
    from paramiko import Transport

SILENT_SECONDS = 12.0  # seconds without any message after which a connection counts as lost
START_SECONDS = 30.0  # timeout for the host's Python to start


class HostUnavailable(Exception):
    """A host cannot be reached; the message names it and the reason."""


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
        from launcher.hosts.connection import connect  # noqa: PLC0415 - paramiko takes a while

        try:
            self._client, route, self.login = connect(target, settings)
        except Unreachable as error:
            raise HostUnavailable(str(error)) from None
        try:
            self._channel = self.transport.open_session(timeout=START_SECONDS)
            self._channel.settimeout(START_SECONDS)
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

    @property
    def transport(self) -> "Transport":
        """The connection, over which other commands may run, too."""
        transport = self._client.get_transport()
        assert transport
        return transport

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
        host = self.transport.getpeername()[0]
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
