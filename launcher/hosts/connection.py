"""SSH connections as the user's own `ssh` makes them: with its configuration, keys, agent, jumps.

    connection = connect(route, password)     raises HostUnavailable
    connection.open_program("nvidia-smi")     a channel of paramiko

`ssh_config` finds the route, `known_hosts` verifies the host, `keys` and `authentication` log in.
Every step has a timeout; `remote_node` notices when the link is dead later.
"""

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import tempfile
import time

import paramiko

from launcher.hosts import keys, known_hosts
from launcher.hosts.authentication import SSH_ERRORS, Login, LoginRejected, PasswordUntried
from launcher.hosts.ssh_config import HostUnavailable, Route

_HANDSHAKE_SECONDS = 15.0  # until the host has sent its key
_LOGIN_SECONDS = 20.0  # for each attempt of a login
_CHANNEL_SECONDS = 30.0  # until a command may run, or a jump host has connected
_END_SECONDS = 1.0  # for a ProxyCommand to end once its connection is closed
_RETRY_PAUSES = (0.2, 0.6, 2.0, 5.0)  # seconds between attempts at a busy server
_CSV_REMEDY = "fix ssh_username, ssh_key_path or ssh_password"
_CONFIG_REMEDY = "fix User or IdentityFile of the SSH configuration, or ssh-add its key"

# It logs tracebacks of errors that are reported here in a sentence.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


class Connection:
    """A connection to a host; close it, also if it was not completed."""

    def __init__(self, route: Route):
        """Reach the host, by its jump hosts or a program."""
        self.route = route
        self.login = ""  # the key that the host has accepted, or "the password"
        sock, self._carrier = _open_socket(route)
        self.transport = paramiko.Transport(sock)
        self.transport.banner_timeout = _HANDSHAKE_SECONDS
        self.transport.auth_timeout = _LOGIN_SECONDS
        self.transport.channel_timeout = _CHANNEL_SECONDS

    def open_program(self, command: str) -> paramiko.Channel:
        """Start a program; return the channel to its input and output. Raise HostUnavailable."""
        try:
            channel = self.transport.open_session(timeout=_CHANNEL_SECONDS)
            channel.settimeout(_CHANNEL_SECONDS)
            channel.exec_command(command)
        except SSH_ERRORS as error:
            raise HostUnavailable(str(error) or type(error).__name__) from None
        return channel

    def close(self) -> None:
        """Close it and what carries it; may be called again."""
        with contextlib.suppress(*SSH_ERRORS):  # another thread has just closed what carries it
            self.transport.close()
        if self._carrier:
            self._carrier.close()

    def complaint(self) -> str:
        """Return, once it is closed, what the ProxyCommand has printed."""
        return self._carrier.complaint() if isinstance(self._carrier, ProxyProgram) else ""


class _HungUp(Exception):
    """A server hung up before it sent anything, as busy servers do."""


def connect(route: Route, password: str, remedy: str = _CSV_REMEDY) -> Connection:
    """Connect along a route and its jump hosts; raise HostUnavailable.

    `remedy`: how to fix a login that is rejected.
    """
    with contextlib.closing(keys.SshAgent(route.agent)) as agent:
        found = keys.find_keys(route, agent)
        try:
            return _connect_with_retries(
                route, Login(route, found.keys, password, found.troubles, remedy)
            )
        except LoginRejected as error:
            rejected = error
        for unlocked in filter(None, map(keys.unlock, found.encrypted)):
            try:
                return _connect_with_retries(route, Login(route, unlocked, password, [], remedy))
            except LoginRejected as error:
                rejected = error
        raise rejected


def _connect_with_retries(route: Route, login: Login) -> Connection:
    """Connect, again if a server was too busy, and once more for the password alone."""
    pauses = list(_RETRY_PAUSES)
    while True:
        try:
            return _connect_once(route, login)
        except PasswordUntried:
            continue
        except _HungUp as error:
            if not pauses:
                what = str(error) or "is the port right, is it overloaded, or does it refuse us?"
                raise HostUnavailable(
                    f"{route.display_name} hangs up before the login: {what}"
                ) from None
            time.sleep(pauses.pop(0) * random.uniform(0.5, 1.5))


def _connect_once(route: Route, login: Login) -> Connection:
    """Make one connection and log in."""
    connection = Connection(route)
    transport, started = connection.transport, time.monotonic()
    try:
        _prefer_known_keys(route, transport)
        transport.start_client(timeout=_HANDSHAKE_SECONDS)
        known_hosts.verify(route, transport.get_remote_server_key())
        connection.login = login.log_in(transport)
    except BaseException as error:
        connection.close()
        if isinstance(error, SSH_ERRORS):
            is_late = time.monotonic() - started >= _HANDSHAKE_SECONDS
            raise _explain(connection, error, is_late) from None
        raise
    return connection


def _prefer_known_keys(route: Route, transport: paramiko.Transport) -> None:
    """Ask the host for a key that is known, of the several that it may have."""
    known = known_hosts.known_key_types(route)
    options = transport.get_security_options()
    options.key_types = sorted(
        options.key_types,
        key=lambda name: ("ssh-rsa" if name.startswith("rsa-") else name) not in known,
    )


def _explain(connection: Connection, error: Exception, is_late: bool) -> Exception:
    """Return the error in a sentence, or _HungUp if another attempt may succeed."""
    name, transport = connection.route.display_name, connection.transport
    if is_late and not transport.initial_kex_done:
        what = "does not finish its handshake" if transport.remote_version else "sends nothing"
        return HostUnavailable(
            f"{name} accepts the connection, but {what} for {_HANDSHAKE_SECONDS:g} s: is that its "
            f"SSH port, and is the host working?"
        )
    if transport.remote_version and isinstance(error, paramiko.SSHException):
        return HostUnavailable(f"{name}: SSH fails: {error or 'it hung up'}")
    return _HungUp(connection.complaint())


def _open_socket(
    route: Route,
) -> tuple[socket.socket | paramiko.Channel, "ProxyProgram | Connection | None"]:
    """Return the socket of a route and what carries it, to be closed after it."""
    if route.proxy_command:
        program = ProxyProgram(route.proxy_command)
        return program.socket, program
    if not route.jump:
        return _connect_tcp(route), None
    try:
        jump = connect(route.jump, "", _CONFIG_REMEDY)
    except HostUnavailable as error:
        raise HostUnavailable(f"{route.host}: through {route.hop}: {error}") from None
    try:
        there, here = (route.address, route.port), ("127.0.0.1", 0)
        return jump.transport.open_channel("direct-tcpip", there, here), jump
    except SSH_ERRORS as error:
        jump.close()
        raise HostUnavailable(
            f"{route.display_name} cannot be reached from {route.hop}: {error}"
        ) from None


def _connect_tcp(route: Route) -> socket.socket:
    """Connect by TCP, trying each of the host's addresses in turn; raise HostUnavailable."""
    try:
        found = socket.getaddrinfo(
            route.address, route.port, family=route.family, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise HostUnavailable(
            f"{route.host}: there is no host {route.address} "
            f"({getattr(error, 'strerror', '') or error}); fix "
            f"column ip, or HostName in the SSH configuration"
        ) from None
    why = ""
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        # An address that does not answer leaves time for the others.
        connection.settimeout(route.connect_timeout / len(found))
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            why = why or _describe_refusal(route, error)
            continue
        # Otherwise a small message waits some 40 ms for the acknowledgement of the one before.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    raise HostUnavailable(why)


def _describe_refusal(route: Route, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"{route.display_name} did not answer in {route.connect_timeout:g} s: is it running, "
            f"and does a firewall let you through?"
        )
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{route.display_name} refuses connections: does sshd run on that host, at that port?"
        )
    return f"{route.display_name} cannot be reached: {error.strerror or error}"


class ProxyProgram:
    """A program whose input and output are the connection (ProxyCommand).

    As with `ssh`, a shell parses the command. paramiko's ProxyCommand does not notice that its
    program has ended, gets the terminal's Ctrl-C, and leaves the program's errors unread.
    """

    def __init__(self, command: str):
        self.socket, its = socket.socketpair()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - kept open
        with its:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=self._errors,
                start_new_session=True,  # on Ctrl-C the frontend still needs its hosts
            )

    def close(self) -> None:
        """End the program; most end by themselves, since their input has ended."""
        self.socket.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                self._process.wait(_END_SECONDS)
                return
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):  # another thread closes it, too
                    os.killpg(self._process.pid, number)
        self._process.wait()

    def complaint(self) -> str:
        """Return, once it is closed, the errors that it has printed."""
        self._errors.seek(0)
        printed = " ".join(self._errors.read(1000).split())
        return f"its ProxyCommand printed: {printed}" if printed else ""
