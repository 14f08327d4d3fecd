"""A learner's server with its front, without a training, for tests of who reaches it."""

import socket
import time
from typing import Any

from processes import free_port
from supervising import until

from impala_mm.runtime import run_token
from impala_mm.runtime.ports import HeldAddress, split_address
from impala_mm.transport.client import Client
from impala_mm.transport.server import Server

TOKEN = run_token.make()
SECRET = TOKEN.partition("\n")[0]
ME = {"run_id": "run", "level_name": "L", "shared": {"network": "n", "layout of parameters": "a"}}


class Learner:
    """A server with a front, what it has logged, and its address."""

    def __init__(self, held: HeldAddress | None = None, token: str = TOKEN, **options: Any):
        """Listen at the held address, or at a new one."""
        held = held or HeldAddress(f"127.0.0.1:{free_port()}")
        self.said: list[str] = []
        self.address = held.address
        self.server = Server(self.address, held, token, ME, 100, self.said.append, **options)
        assert self.server.listener.front
        self.front = self.server.listener.front

    def __enter__(self) -> "Learner":
        return self

    def __exit__(self, *_: object) -> None:
        self.front.stop()
        self.server.close()

    def join(self, from_outside: bool = True, token: str = TOKEN) -> Client:
        """Return the client of an actor that has joined."""
        client = Client(self.address, token, 10, from_outside)
        client.hello(ME | {"actor": 1, "incarnation": 1, "level": "L"})
        return client

    def dial(self) -> socket.socket:
        """Return a bare connection to the learner's port."""
        return socket.create_connection(split_address(self.address), 10)

    def refusals(self) -> list[str]:
        """Return the logged lines about connections that were refused."""
        return [line for line in self.said if "refused from" in line]

    def await_refusals(self) -> list[str]:
        """Wait for such lines and return them."""
        until(self.refusals, 10)
        return self.refusals()


def slowest_call(client: Client, calls: int = 20) -> float:
    """Return the seconds of the slowest of some calls."""
    slowest = 0.0
    for _ in range(calls):
        since = time.monotonic()
        client.hello({"probe": True})
        slowest = max(slowest, time.monotonic() - since)
    return slowest
