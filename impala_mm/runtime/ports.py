"""Addresses of learners: parse them, check that they are free, name the process that holds one."""

import contextlib
import ipaddress
import os
import socket
from pathlib import Path

from impala_mm.config import flags
from impala_mm.config.settings import Config

_LISTENING = "0A"  # in /proc/net/tcp


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port"; raise ValueError if it is malformed."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
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
    """Raise OSError if another process listens on `address`.

    gRPC would silently share a port that is taken; a plain socket without SO_REUSEPORT is refused.
    """
    host, port = split_address(address)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family[0], family[1]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(family[4])
        except OSError as error:
            raise OSError(f"{address}: {error.strerror}{describe_holder(address)}") from None


def describe_holder(address: str) -> str:
    """Return the process that listens on `address`, in brackets; empty if it is not known."""
    _, port = split_address(address)
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in filter(str.isdigit, os.listdir("/proc")):
        if inodes & _open_files(process):
            command = _read(f"/proc/{process}/cmdline").replace("\0", " ").strip()
            return f" (held by process {process}: {command[:80]})"
    return ""


def _open_files(process: str) -> set[str]:
    """Return the open files of a process; none if it belongs to another user or has ended."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    return found


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def parse_learner_hosts(config: Config) -> list[str]:
    """Return the addresses in --learner_hosts, and exempt them from the environment's proxies."""
    found = [address.strip() for address in config.learner_hosts.split(",")]
    try:
        hosts = [split_address(address)[0] for address in found]
        if config.bind_address:
            split_address(config.bind_address)
    except ValueError as error:
        flags.refuse(str(error))
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name, ""), *hosts]))
    return found
