"""SSH to a host, as the user's own `ssh` would go there: its configuration, keys, agent, jumps.

    connection = connect(target, settings)      from a row of the CSV; or Unreachable, in a sentence
    connection.client.exec_command(...)         paramiko's client, as it comes
    connect_with(connection.credential)         the same login from another machine

The way there is `config`'s, what is carried over `carrier`'s; whether the host is the right
one `known_hosts` says, and who we are `keys` and `login`. Every step has a limit.
"""

import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import paramiko

from launcher.ssh import keys, known_hosts, proxy_transport, ssh_config
from launcher.ssh.authentication import HungUp, Login
from launcher.ssh.known_hosts import HostKeyRefused
from launcher.ssh.ssh_config import Route, Settings, Target, Unreachable, route

_HANDSHAKE_SECONDS = 15.0  # until the host has shown its key
_ANSWER_SECONDS = 20.0  # for each try of a login
_CHANNEL_SECONDS = 30.0  # until a command may run, or a jump goes on
_KEEPALIVE_SECONDS = 15
_PAUSES = (0.2, 0.6, 2.0, 5.0)  # before the next try of a server that has too much to do
_MOST_JUMPS = 8
_IN_CSV = "mend ssh_username, ssh_key_path or ssh_password"
_IN_CONFIG = "mend User or IdentityFile of the SSH configuration, or ssh-add its key"

# It writes tracebacks of what is said here in a sentence.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


class Credential(NamedTuple):
    """What another machine needs to log in as we did; plain strings and numbers."""

    host: str  # as the CSV calls it
    address: str
    port: int
    username: str
    password: str  # "": it was not needed
    key: str  # the private key's text; "": a password or the agent let us in
    host_key: str  # "ssh-ed25519 AAAA...", as it was verified

    def __repr__(self) -> str:
        shown = self._replace(password="***" * bool(self.password), key="***" * bool(self.key))
        return f"Credential{tuple(shown)}"


class Connection(NamedTuple):
    """Open, until its client is closed."""

    client: paramiko.SSHClient
    route: Route
    credential: Credential


class Judge(NamedTuple):
    """Of host keys."""

    kinds: set[str]  # to be shown first
    accept: Callable[[paramiko.PKey], None]  # raises HostKeyRefused


class _Dropped(Exception):
    """A server hung up before it said anything, as busy ones do."""


def connect(target: Target, settings: Settings) -> Connection:
    """Raises Unreachable."""
    way = route(target, settings)
    client, login = _arrive(way, settings, target.ssh_password, _IN_CSV, ())
    credential = Credential(
        *(way.host, way.address, way.port, way.username),
        password=login.password,
        key=login.key_text,
        host_key=_listed(_transport(client).get_remote_server_key()),
    )
    return Connection(client, way, credential)


def connect_with(credential: Credential) -> paramiko.SSHClient:
    """From another machine: no configuration; its own keys only where none is given."""
    way = ssh_config.own_route(*credential[:4])
    own = not credential.key and not credential.password
    agent = keys.Agent(way.agent if own else "")
    found, troubles = keys.keys(way, agent) if own else ([], [])
    if credential.key:
        found = [keys.Key("the key that was given", keys.private_key(credential.key))]
    remedy = "the machine that starts the run is: name a key that works from here, too"
    login = Login(way, found, credential.password, troubles, remedy)
    judge = Judge({credential.host_key.split()[0]}, functools.partial(_is, way, credential))
    with contextlib.closing(agent):
        return _enter(way, login, judge, lambda: proxy_transport.dial(way))


def _is(way: Route, credential: Credential, key: paramiko.PKey) -> None:
    if _listed(key) != credential.host_key:
        raise HostKeyRefused(
            f"{way.shown} shows another key here, {key.get_name()} {key.fingerprint}, than to the "
            f"machine that starts the run: does its name mean another host here?"
        )


def _listed(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def _arrive(
    way: Route, settings: Settings, password: str, remedy: str, passed: tuple[str, ...]
) -> tuple[paramiko.SSHClient, Login]:
    """At the end of a route, by way of its jumps; `passed`: those that led here."""
    agent = keys.Agent(way.agent)
    with contextlib.closing(agent):
        found, troubles = keys.keys(way, agent)
        login = Login(way, found, password, troubles, remedy)
        judge = Judge(known_hosts.kinds(way), functools.partial(known_hosts.accept, way))
        return _enter(way, login, judge, lambda: _carrier(way, settings, passed)), login


def _carrier(way: Route, settings: Settings, passed: tuple[str, ...]) -> Any:
    """What `way` says its connection goes through."""
    if way.proxy_command:
        return proxy_transport.run_proxy(way)
    if not way.proxy_jump:
        return proxy_transport.dial(way)
    *before, hop = way.proxy_jump
    if len(passed) == _MOST_JUMPS:
        raise Unreachable(f"ProxyJump goes round in circles: {' via '.join(passed)}")
    try:
        to = route(ssh_config.jump(hop), settings)
        if before:  # they lead to it, whatever it says itself
            to = to._replace(proxy_jump=tuple(before), proxy_command="")
        client, _ = _arrive(to, settings, "", _IN_CONFIG, (*passed, hop))
    except Unreachable as error:
        raise type(error)(f"{way.host}: by way of {hop}: {error}") from None
    try:
        channel = _transport(client).open_channel(
            "direct-tcpip", (way.address, way.port), ("127.0.0.1", 0), timeout=_CHANNEL_SECONDS
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        client.close()
        raise Unreachable(f"{way.shown} cannot be reached from {hop}: {error}") from None
    return proxy_transport.Carrier(channel, client.close)


def _enter(
    way: Route, login: Login, judge: Judge, carrier: Callable[[], Any]
) -> paramiko.SSHClient:
    """Again where a server was too busy, and once more for the password alone."""
    pauses = list(_PAUSES)
    while True:
        try:
            carried = carrier()
        except OSError as error:
            raise Unreachable(f"{way.shown} cannot be reached: {error.strerror}") from None
        try:
            return _shake_hands(way, login, judge, carried)
        except _Dropped as error:
            if not pauses:
                what = str(error) or "is the port right, is it overloaded, or does it refuse us?"
                raise Unreachable(
                    f"{way.shown} hangs up before anybody can log in: {what}"
                ) from None
            time.sleep(pauses.pop(0) * random.uniform(0.5, 1.5))
        except HungUp:
            if not login.left_out_password():
                raise login.hung_up() from None


def _shake_hands(way: Route, login: Login, judge: Judge, carrier: Any) -> paramiko.SSHClient:
    """One connection."""
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_Policy(judge))
    begun = time.monotonic()
    try:
        client.connect(
            way.address,
            way.port,
            way.username,
            sock=carrier,
            timeout=_HANDSHAKE_SECONDS,
            banner_timeout=_HANDSHAKE_SECONDS,
            auth_timeout=_ANSWER_SECONDS,
            channel_timeout=_CHANNEL_SECONDS,
            transport_factory=functools.partial(_prefer, judge),
            auth_strategy=login,
        )
        _transport(client).set_keepalive(_KEEPALIVE_SECONDS)
    except BaseException as error:
        transport = client.get_transport()
        client.close()
        carrier.close()
        if transport and isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            late = time.monotonic() - begun >= _HANDSHAKE_SECONDS
            why = _why(way, transport, error, late)
            raise why or _Dropped(getattr(carrier, "complaint", "")) from None
        raise
    return client


def _why(
    way: Route, transport: paramiko.Transport, error: Exception, late: bool
) -> Unreachable | None:
    """In our words; None where it is worth another try."""
    if late and not transport.initial_kex_done:
        what = "says nothing" if not transport.remote_version else "does not finish its handshake"
        return Unreachable(
            f"{way.shown} takes the connection, and {what} for {_HANDSHAKE_SECONDS:g} s: is that "
            f"its SSH port, and is it well?"
        )
    if not transport.remote_version or isinstance(error, (EOFError, OSError)):
        return None
    return Unreachable(f"{way.shown}: SSH fails: {error or 'it hung up'}")


class _Policy(paramiko.MissingHostKeyPolicy):
    """paramiko itself knows no host: all are ours to judge."""

    def __init__(self, judge: Judge):
        self._judge = judge

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        self._judge.accept(key)


def _prefer(judge: Judge, carrier: Any, **more: Any) -> paramiko.Transport:
    """A host has several keys, and shows the first that we ask for: ask for one that is known."""
    transport = paramiko.Transport(carrier, **more)
    options = transport.get_security_options()
    options.key_types = sorted(
        options.key_types,
        key=lambda name: ("ssh-rsa" if name.startswith("rsa-") else name) not in judge.kinds,
    )
    return transport


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    transport = client.get_transport()
    assert transport
    return transport
