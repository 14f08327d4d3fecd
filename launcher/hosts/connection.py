"""SSH connections as the user's own `ssh` makes them: with its configuration, keys, agent, jumps.

    connection = connect(target, settings)            from a row of the CSV; raises Unreachable
    connection.client.exec_command(...)               paramiko's client

`ssh_config` finds the route, `proxy_transport` opens the socket, `known_hosts` verifies the host,
`keys` and `authentication` log in. Every step has a timeout.
"""

import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import paramiko

from launcher.hosts import keys, known_hosts, passphrases, proxy_transport, ssh_config
from launcher.hosts.authentication import ConnectionClosed, Login, LoginRejected
from launcher.hosts.ssh_config import Route, Settings, Target, Unreachable, find_route

_HANDSHAKE_SECONDS = 15.0  # until the host has sent its key
_LOGIN_SECONDS = 20.0  # for each attempt of a login
_CHANNEL_SECONDS = 30.0  # until a command may run, or a jump host has connected
_KEEPALIVE_SECONDS = 15
_RETRY_PAUSES = (0.2, 0.6, 2.0, 5.0)  # seconds between attempts at a busy server
_MAX_JUMPS = 8
_CSV_REMEDY = "fix ssh_username, ssh_key_path or ssh_password"
_CONFIG_REMEDY = "fix User or IdentityFile of the SSH configuration, or ssh-add its key"

# It logs tracebacks of errors that are reported here in a sentence.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


class Connection(NamedTuple):
    """A connection that is open until its client is closed."""

    client: paramiko.SSHClient
    route: Route
    login: str  # the key that the host has accepted, as messages call it, or "the password"


class HostKeyVerifier(NamedTuple):
    """A check of a host's key."""

    key_types: set[str]  # the host is asked for a key of these types first
    verify: Callable[[paramiko.PKey], None]  # raises HostKeyRefused


class _ConnectionDropped(Exception):
    """A server hung up before it sent anything, as busy servers do."""


def connect(target: Target, settings: Settings) -> Connection:
    """Connect to the host of a row of the CSV; raise Unreachable."""
    route = find_route(target, settings)
    return _connect_route(route, settings, target.ssh_password, _CSV_REMEDY, ())


def _connect_route(
    route: Route, settings: Settings, password: str, remedy: str, passed_hops: tuple[str, ...]
) -> Connection:
    """Connect along a route and its jump hosts; `passed_hops`: the jump hosts so far."""
    agent = keys.SshAgent(route.agent)
    with contextlib.closing(agent):
        found = keys.find_keys(route, agent, passphrases.known)
        verifier = HostKeyVerifier(
            known_hosts.known_key_types(route), functools.partial(known_hosts.verify, route)
        )

        def connect_with(tried: list[keys.Key], troubles: list[str]) -> Connection:
            login = Login(route, tried, password, troubles, remedy)
            client = _connect_with_retries(
                route, login, verifier, lambda: _open_socket(route, settings, passed_hops)
            )
            return Connection(client, route, login.accepted)

        try:
            return connect_with(found.keys, found.troubles)
        except LoginRejected as error:
            rejected = error
        for path in found.encrypted:
            if unlocked := passphrases.unlock(path):
                try:
                    return connect_with(unlocked, [])
                except LoginRejected as error:
                    rejected = error
        raise rejected


def _open_socket(route: Route, settings: Settings, passed_hops: tuple[str, ...]) -> Any:
    """Return the socket of a route: TCP, a proxy command, or a channel of a jump host."""
    if route.proxy_command:
        return proxy_transport.run_proxy_command(route)
    if not route.proxy_jump:
        return proxy_transport.connect_tcp(route)
    *earlier_hops, hop = route.proxy_jump
    if len(passed_hops) == _MAX_JUMPS:
        raise Unreachable(f"ProxyJump leads in a circle: {' via '.join(passed_hops)}")
    try:
        target_route = find_route(ssh_config.jump_target(hop), settings)
        if earlier_hops:  # they lead to it, whatever its own configuration is
            target_route = target_route._replace(proxy_jump=tuple(earlier_hops), proxy_command="")
        client = _connect_route(
            target_route, settings, "", _CONFIG_REMEDY, (*passed_hops, hop)
        ).client
    except Unreachable as error:
        raise type(error)(f"{route.host}: through {hop}: {error}") from None
    try:
        channel = _get_transport(client).open_channel(
            "direct-tcpip", (route.address, route.port), ("127.0.0.1", 0), timeout=_CHANNEL_SECONDS
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        client.close()
        raise Unreachable(f"{route.display_name} cannot be reached from {hop}: {error}") from None
    return proxy_transport.ProxySocket(channel, client.close)


def _connect_with_retries(
    route: Route, login: Login, verifier: HostKeyVerifier, open_socket: Callable[[], Any]
) -> paramiko.SSHClient:
    """Connect, again if a server was too busy, and once more for the password alone."""
    pauses = list(_RETRY_PAUSES)
    while True:
        try:
            sock = open_socket()
        except OSError as error:
            raise Unreachable(f"{route.display_name} cannot be reached: {error.strerror}") from None
        try:
            return _connect_once(route, login, verifier, sock)
        except _ConnectionDropped as error:
            if not pauses:
                what = str(error) or "is the port right, is it overloaded, or does it refuse us?"
                raise Unreachable(
                    f"{route.display_name} hangs up before the login: {what}"
                ) from None
            time.sleep(pauses.pop(0) * random.uniform(0.5, 1.5))
        except ConnectionClosed:
            if not login.can_retry_with_password():
                raise login.rejection() from None


def _connect_once(
    route: Route, login: Login, verifier: HostKeyVerifier, sock: Any
) -> paramiko.SSHClient:
    """Make one connection and log in."""
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_VerifierPolicy(verifier))
    started = time.monotonic()
    try:
        client.connect(
            route.address,
            route.port,
            route.username,
            sock=sock,
            timeout=_HANDSHAKE_SECONDS,
            banner_timeout=_HANDSHAKE_SECONDS,
            auth_timeout=_LOGIN_SECONDS,
            channel_timeout=_CHANNEL_SECONDS,
            transport_factory=functools.partial(_make_transport, verifier),
            auth_strategy=login,
        )
        _get_transport(client).set_keepalive(_KEEPALIVE_SECONDS)
    except BaseException as error:
        transport = client.get_transport()
        client.close()
        sock.close()
        if transport and isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            late = time.monotonic() - started >= _HANDSHAKE_SECONDS
            reason = _describe_error(route, transport, error, late)
            raise reason or _ConnectionDropped(getattr(sock, "complaint", "")) from None
        raise
    return client


def _describe_error(
    route: Route, transport: paramiko.Transport, error: Exception, late: bool
) -> Unreachable | None:
    """Return the error in a sentence, or None if another attempt may succeed."""
    if late and not transport.initial_kex_done:
        what = "sends nothing" if not transport.remote_version else "does not finish its handshake"
        return Unreachable(
            f"{route.display_name} accepts the connection, but {what} for "
            f"{_HANDSHAKE_SECONDS:g} s: is that its SSH port, and is the host working?"
        )
    if not transport.remote_version or isinstance(error, (EOFError, OSError)):
        return None
    return Unreachable(f"{route.display_name}: SSH fails: {error or 'it hung up'}")


class _VerifierPolicy(paramiko.MissingHostKeyPolicy):
    """The hook by which paramiko asks about a host's key; paramiko itself knows no host."""

    def __init__(self, verifier: HostKeyVerifier):
        self._verifier = verifier

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        self._verifier.verify(key)


def _make_transport(verifier: HostKeyVerifier, sock: Any, **more: Any) -> paramiko.Transport:
    """Return a transport that asks the host for a known key, of the several that it may have."""
    transport = paramiko.Transport(sock, **more)
    options = transport.get_security_options()
    options.key_types = sorted(
        options.key_types,
        key=lambda name: ("ssh-rsa" if name.startswith("rsa-") else name) not in verifier.key_types,
    )
    return transport


def _get_transport(client: paramiko.SSHClient) -> paramiko.Transport:
    transport = client.get_transport()
    assert transport
    return transport
