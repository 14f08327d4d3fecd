"""The end of the connection that listens: a learner's Unix socket and the front, or a plain port.

`server` offers its functions through it.
"""

import socket
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

_START_SECONDS = 30.0  # for the front
_DIAL_SECONDS = 5.0


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
        self._say = say

    def check(self, address: str, token: str, nonce: int) -> None:
        """Raise OSError unless the functions with this nonce answer those who dial `address`.

        gRPC raises no error if it shares the port with another process. A front shares no port;
        others may use up the handshakes that it grants to this machine's address, and that must not
        end the learner.
        """
        if self.front and not self.front.serves.wait(_START_SECONDS):
            raise OSError("the process that other hosts connect to does not start")
        try:
            client = Client(address, token, timeout=10, from_outside=True)
            answer = client.hello({"probe": True})
        except (Refused, Unreachable) as error:
            if self.front and isinstance(error, Unreachable) and _accepts(address):
                self._say(
                    f"warning: this learner got no answer from itself at {address} ({error}): "
                    f"others may use up the connections there, or the address leads to another "
                    f"process; actors that get no answer try again"
                )
                return
            raise OSError(f"this learner cannot reach itself at {address}: {error}") from None
        if answer["nonce"] != nonce:
            holder = ports.describe_holder(self.address)
            raise OSError(f"{address} is answered by another learner{holder}")


def _accepts(address: str) -> bool:
    """Return whether a process accepts connections at an address."""
    try:
        socket.create_connection(ports.split_address(address), _DIAL_SECONDS).close()
    except ConnectionResetError:  # it was accepted first
        return True
    except OSError:
        return False
    return True
