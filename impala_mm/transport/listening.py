"""The end of the connection that listens: a learner's Unix socket and the front, or a plain port.

`server` offers its functions through it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.runtime import ports
from impala_mm.runtime.log import Say
from impala_mm.transport import local_sockets
from impala_mm.transport.client import Client, Refused, Unreachable
from impala_mm.transport.credentials import Credentials
from impala_mm.transport.front_process import FrontProcess


class Listener:
    """TensorFlow's RPC server of a learner, and the process that relays other hosts to it."""

    def __init__(
        self,
        held: ports.HeldAddress,
        credentials: Credentials,
        functions: Mapping[str, Any],
        offers_socket: bool,
        say: Say,
    ):
        """Offer these functions of TensorFlow, by name, at the address that `held` holds.

        Without certificates the RPC server listens there itself. With them it listens at a Unix
        socket, and `offers_socket` says whether actors of this user and machine find that.
        """
        own: Path | None = None
        if credentials.authority:
            own = local_sockets.path_of_learner(held.sockets if offers_socket else ())
        else:
            held.share()
        target = f"unix:{own}" if own else held.address
        self._server = tf.distribute.experimental.rpc.Server.create("grpc", target)
        for name, function in functions.items():
            self._server.register(name, function)
        self._server.start()
        self.address, self.front = held.address, None
        if own:
            self.front = FrontProcess(held.take_sockets(), own, credentials, say)
        held.release()

    def check(self, address: str, token: str, nonce: int) -> None:
        """Raise OSError unless the functions with this nonce answer those who dial `address`.

        gRPC raises no error if it shares the port with another process.
        """
        try:
            client = Client(address, token, timeout=10, from_outside=True)
            answer = client.hello({"probe": True})
        except (Refused, Unreachable) as error:
            raise OSError(f"this learner cannot reach itself at {address}: {error}") from None
        if answer["nonce"] != nonce:
            holder = ports.describe_holder(self.address)
            raise OSError(f"{address} is answered by another learner{holder}")
