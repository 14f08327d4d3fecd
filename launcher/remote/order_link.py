"""The channel by which the controller on a host of the CSV reaches the others, without SSH.

It connects by TLS to what takes orders on a host (`launcher.node.order_server`). Where these
listen, and the credentials, a frontend has left beside the controller's record.
"""

import json
from collections.abc import Iterator
from typing import Any

from launcher.node import order_channel
from launcher.node.controlled_node import ORDERS, read_term
from launcher.node.order_messages import OrderMessages
from launcher.node.run_registry import Run
from launcher.node.task import read_json
from launcher.remote.failures import HostUnavailable
from launcher.remote.remote_node import OpenChannel

_CONNECT_SECONDS = 10.0
_MAX_LINE_BYTES = 1 << 26  # the states of thousands of processes
_WAITS = "it waits for a frontend that follows the run (--attach)"


class OrderLink:
    """The connection to one host."""

    login = "the run's TLS"

    def __init__(self, address: str, server: dict[str, Any], credentials: str, term: int):
        """Connect, as the controller of a term. Raises HostUnavailable."""
        try:
            connection = order_channel.connect(address, server, credentials, _CONNECT_SECONDS)
            order = {"order": "serve", "id": server["id"], "term": term}
            connection.sendall(order_channel.encode(order))
            self._messages = OrderMessages(connection, _MAX_LINE_BYTES)
            self._lines = self._messages.lines()
            reply = json.loads(next(self._lines, b"{}"))
        except (OSError, ValueError) as error:
            why = str(error) or "it does not answer"
            raise HostUnavailable(f"{address} takes no orders ({why}): {_WAITS}") from None
        if "ready" not in reply:
            self._messages.close()
            why = reply.get("refused", "it has closed the connection")
            raise HostUnavailable(f"{address} takes no orders ({why}): {_WAITS}")

    def send(self, data: bytes) -> None:
        """Send lines."""
        self._messages.send(data)

    def lines(self) -> Iterator[bytes]:
        """Yield the host's lines."""
        return self._lines

    def close(self) -> None:
        """Close the connection."""
        self._messages.close()


def opener(run: Run) -> OpenChannel:
    """Return the function that opens a channel to a host of a run, as its controller."""
    term = read_term(run.folder / ORDERS)  # a later one is that of another controller

    def open_channel(host_id: str, name: str) -> OrderLink:
        del name  # the host knows the run
        control = read_json(run.folder / ORDERS)
        server = control.get("servers", {}).get(host_id)
        if not server:
            raise HostUnavailable(f"{host_id}: no frontend has prepared it for orders: {_WAITS}")
        return OrderLink(server["address"], server, control["credentials"], term)

    return open_channel
