"""The way from an actor to a learner: a Unix socket on the same machine, TLS, or neither."""

import contextlib
import os
import socket
import ssl
import stat
import time

from impala_mm.runtime import ports
from impala_mm.transport import local_sockets
from impala_mm.transport.carrier import keep_watch
from impala_mm.transport.credentials import Credentials
from impala_mm.transport.handshake import NO_TOKEN
from impala_mm.transport.relay import relay_to

# OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED, and the alerts by which
# the learner's end says the same of this end's certificate.
_OUTSIDE_ITS_TIME = {9, 10}
_OF_TIME = {"SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED"}
_NOT_TLS = {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}


class NotAccepted(Exception):
    """The learner's end and this one have different credentials; the message says what to do."""


def find(address: str, credentials: Credentials, seconds: float, from_outside: bool) -> str:
    """Return the target for gRPC that leads to the learner at `address`, which has answered.

    `from_outside`: dial the address itself, even on the learner's machine. Raises NotAccepted, and
    OSError if nobody answers within `seconds`.
    """
    if not credentials.authority:
        with socket.create_connection(ports.split_address(address), seconds) as connection:
            _wait_for_server(connection)
        return address
    if not from_outside and (path := local_sockets.find_learner(address)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            _wait_for_server(connection)
        return f"unix:{path}"
    relay = relay_to(address, credentials)
    try:
        with relay.dial(seconds) as connection:
            _wait_for_server(connection)
    except ssl.SSLError as error:
        raise _refusal(address, error) from None
    return f"unix:{relay.path}"


def watch(target: str) -> None:
    """Let the kernel close gRPC's connections to a target whose host has vanished.

    Otherwise the kernel repeats what was not acknowledged after ever longer pauses, and goes on to
    wait for nearly as long as the network was down. gRPC takes no such options for its sockets.
    """
    if target.startswith("unix:"):  # the relay watches its own connections
        return
    host, port = ports.split_address(target)
    with contextlib.suppress(OSError):
        hosts = [each[4][0] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        found = {(f"{prefix}{each}", port) for each in hosts for prefix in ("", "::ffff:")}
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # it is closed by now, or not a connection
                own = os.dup(number)
                if not stat.S_ISSOCK(os.fstat(own).st_mode):
                    os.close(own)
                    continue
                # Addresses of every family fit into those of this one.
                with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=own) as connection:
                    if connection.getpeername()[:2] in found:
                        keep_watch(connection)


def _wait_for_server(connection: socket.socket) -> None:
    """Wait until a gRPC server sends its first byte; raise OSError if none does.

    A learner that is starting holds its port, where connections wait until its server listens.
    """
    if not connection.recv(1):
        raise ConnectionResetError("the connection was closed")


def _refusal(address: str, error: ssl.SSLError) -> Exception:
    """Return what an error of TLS means to an actor."""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return ConnectionResetError("the connection was closed")
    if error.reason in _NOT_TLS:
        return NotAccepted(
            f"the process at {address} does not use TLS: if it is a learner with "
            f"--transport_security=none, give the same flag to its actors"
        )
    why = getattr(error, "verify_message", "") or (error.reason or "").replace("_", " ").lower()
    if getattr(error, "verify_code", 0) in _OUTSIDE_ITS_TIME or error.reason in _OF_TIME:
        return NotAccepted(
            f"the clock of this host ({time.strftime('%Y-%m-%d %H:%M')}) or of the learner's is "
            f"wrong, or the token file is older than ten years (TLS: {why}): set the clock, or "
            f"remove the file on all hosts"
        )
    return NotAccepted(f"{NO_TOKEN} (TLS: {why})")
