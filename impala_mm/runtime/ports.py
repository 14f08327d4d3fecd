"""Addresses of learners: parse them, hold them, name the process that holds one.

Port 0 in an address stands for the first free port from 8001 up.
"""

import contextlib
import errno
import ipaddress
import os
import pwd
import socket
from collections.abc import Collection, Sequence

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.runtime.safe_files import text_of

FIRST_PORT = 8001  # the first port that is tried if an address has port 0
_LISTENING = "0A"  # in /proc/net/tcp
_COMMAND_LETTERS = 160  # letters of a holder's command that are shown
# Errors of one of a host's addresses that do not matter if another one can be held.
_NOT_OURS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port"; raise ValueError if it is malformed."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port, such as localhost:8001")
    return host, int(port)


def loopback_warning(address: str) -> str:
    """Return a warning if other hosts cannot reach this address, such as Debian's 127.0.1.1.

    Return an empty string otherwise.
    """
    host, port = split_address(address)
    with contextlib.suppress(OSError):
        found = {family[4][0] for family in socket.getaddrinfo(host, port)}
        loopback = [one for one in found if ipaddress.ip_address(one).is_loopback]
        if loopback and len(loopback) == len(found) and host not in {"localhost", *found}:
            return (
                f"{host} is {loopback[0]} on this machine, which no other host reaches: if actors "
                f"run on other hosts, listen with --bind_address=0.0.0.0:{port} or fix /etc/hosts"
            )
    return ""


def check_free(address: str) -> None:
    """Raise OSError, naming the holder, if another process listens on `address`.

    The frontend prints the error's text, which contains no error number.
    """
    try:
        HeldAddress(address).release()
    except OSError as error:
        raise OSError(error.strerror) from None


class HeldAddress:
    """An address that this process holds, so that no other learner can take it.

    gRPC would silently share a port that is taken. A plain socket that listens without SO_REUSEPORT
    shares it neither with gRPC nor with another such socket. Clients that connect to it wait, and
    are reset by `release`.
    """

    def __init__(self, address: str, reserved: Collection[int] = ()):
        """Hold `address`, or the first free port of its host if its port is 0.

        `reserved`: ports that are not chosen, even if they are free. Raises OSError, naming the
        address and the process that holds it.
        """
        host, port = split_address(address)
        self.sockets: list[socket.socket] = []
        for self.port in [port] if port else range(FIRST_PORT, 65536):
            if not port and self.port in reserved:
                continue
            self.address = f"{host}:{self.port}"
            try:
                self._listen(host)
            except OSError as error:
                self.release()
                is_taken = error.errno == errno.EADDRINUSE
                if port or not is_taken:
                    holder = describe_holder(self.address) if is_taken else ""
                    raise OSError(
                        error.errno, f"{self.address}: {error.strerror}{holder}"
                    ) from None
            else:
                return
        raise OSError(errno.EADDRINUSE, f"{host}: every port from {FIRST_PORT} up is in use")

    def share(self) -> None:
        """Let a gRPC server of this user listen at the address, too."""
        for held in self.sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def take_sockets(self) -> list[socket.socket]:
        """Leave the sockets to the caller, who closes them."""
        taken, self.sockets = self.sockets, []
        return taken

    def release(self) -> None:
        """Hold the address no longer."""
        for held in self.take_sockets():
            held.close()

    def _listen(self, host: str) -> None:
        """Listen at all addresses of `host` that this machine has, and at one or more."""
        found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        foreign = None
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                held = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # the kernel has no IPv6
                foreign = error
                continue
            self.sockets.append(held)
            try:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(address)
                held.listen(socket.SOMAXCONN)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
                foreign = error
                self.sockets.pop().close()
        if foreign and not self.sockets:
            raise foreign


def describe_holder(address: str) -> str:
    """Return the process that listens on `address`, in brackets; empty if it is not known."""
    _, port = split_address(address)
    users = {}  # by the socket
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text_of(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                users[f"socket:[{fields[9]}]"] = int(fields[7])
    for process in filter(str.isdigit, os.listdir("/proc")):
        if users.keys() & _open_files(process):
            command = text_of(f"/proc/{process}/cmdline").replace("\0", " ").strip()
            shown = (
                command if len(command) <= _COMMAND_LETTERS else f"{command[:_COMMAND_LETTERS]}..."
            )
            return f" (held by process {process}: {shown})"
    for user in users.values():
        name = f"user {user}"
        with contextlib.suppress(KeyError):
            name = pwd.getpwuid(user).pw_name
        return f" (held by a process of {name})"
    return ""


def _open_files(process: str) -> set[str]:
    """Return the open files of a process; none if it belongs to another user or has ended."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    return found


def parse_learner_hosts(config: Config) -> list[str]:
    """Return the addresses in --learner_hosts, and exempt them from the environment's proxies."""
    found = [address.strip() for address in config.learner_hosts.split(",")]
    hosts = [_host("learner_hosts", config.learner_hosts, address) for address in found]
    if config.bind_address:
        _host("bind_address", config.bind_address, config.bind_address)
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name, ""), *hosts]))
    return found


def in_words(learners: Sequence[str]) -> str:
    """Return the addresses of the learners that a process waits for, one of them being enough."""
    if len(learners) == 1:
        return f"the learner at {learners[0]}"
    return f"a learner at {' or '.join(learners)}"


def _host(flag: str, value: str, address: str) -> str:
    """Return the host of an address in a flag; exit with code 2 if the address is malformed."""
    try:
        return split_address(address)[0]
    except ValueError as error:
        flags.refuse(f"--{flag}={value}: {error}")
