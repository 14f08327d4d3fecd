"""Orders from the first learner's host to the supervisors of mpirun's daemons, over TLS 1.3.

The frontend makes one set of credentials for each start of a run: an authority, and a certificate
for each of two roles. The first learner's host gets that of the role "mpirun", other learners'
hosts that of the role "supervisor", hosts of actors none. Nobody else can connect.

Both sides send lines of JSON. An order has the supervisor's `id`, which it got at its start:

    {"id": ..., "order": "ping"}                the reply is {"ready": true}
    {"id": ..., "order": "start", "line": ...}  replies: {"output": text} at any time, and at the
                                                daemon's end {"code": N}; if the connection ends
                                                before that, the daemon is ended
    {"id": ..., "order": "end"}                 the supervisor ends, and its daemon with it

The reply to an order that is not accepted is {"refused": why}.
"""

import errno
import ipaddress
import json
import os
import socket
import ssl
from typing import Any

SUPERVISOR, MPIRUN = ROLES = "supervisor", "mpirun"  # a server and its client
FIRST_PORT = 7001  # the first port that a supervisor tries
_MAX_PORTS = 1000
_DEAD_MS = 60_000  # after which a connection without acknowledgements counts as lost
# Seconds without traffic before the first probe, seconds between probes, and their number.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def context(credentials: str, role: str) -> ssl.SSLContext:
    """Return the TLS context of a role.

    Its part of the credentials is a certificate, its key, and last the authority's certificate.
    """
    is_server = role == SUPERVISOR
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=credentials[credentials.rindex("-----BEGIN") :])
    file = os.memfd_create("certificate")  # a certificate can be loaded only from a file
    try:
        os.write(file, credentials.encode())
        made.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    if is_server:
        made.num_tickets = 0  # sessions are not resumed
    return made


def listen(host: str) -> socket.socket:
    """Listen on a host's address at the first free port. Raises OSError.

    Of several addresses it is the first that other hosts reach. If the address is not this
    machine's, as behind a translation of addresses, listen on all.
    """
    resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    outside = [x for x in resolved if not ipaddress.ip_address(x[4][0]).is_loopback]
    family, _, _, _, found = (outside or resolved)[0]
    address = str(found[0])
    for port in range(FIRST_PORT, FIRST_PORT + _MAX_PORTS):
        try:
            return socket.create_server((address, port), family=family)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and address:
                address = ""
            elif error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {FIRST_PORT} to {port} of {host} are taken")


def connect(
    host: str, supervisor: dict[str, Any], credentials: str, seconds: float
) -> ssl.SSLSocket:
    """Connect to a host's supervisor, given its {"port": ..., "id": ...}. Raises OSError."""
    connection = socket.create_connection((host, supervisor["port"]), seconds)
    try:
        detect_loss(connection)
        return context(credentials, MPIRUN).wrap_socket(connection, server_hostname=SUPERVISOR)
    except BaseException:
        connection.close()
        raise


def detect_loss(connection: socket.socket) -> None:
    """Let a connection fail if the other host no longer answers, such as after a power cut."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS)


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as a line."""
    return json.dumps(message).encode() + b"\n"
