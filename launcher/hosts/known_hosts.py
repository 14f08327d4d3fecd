"""The check of hosts' keys: reads and writes known_hosts files as OpenSSH does.

An unknown host is refused, or trusted at first use if the user wants that. A host that shows
another key than before is always refused.
"""

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import paramiko

from launcher.hosts.ssh_config import Route, Unreachable

_LOCK_SECONDS = 10.0  # for other processes that write to the same file


class HostKeyRefused(Unreachable):
    """A host's key is not known, not the one that is known, or revoked."""


class KnownHostsEntry(NamedTuple):
    """A line of a known_hosts file that matches a host."""

    file: str
    line: int
    marker: str  # "", "@revoked" or "@cert-authority"
    key_type: str  # such as ssh-ed25519
    key: bytes


def known_key_types(route: Route) -> set[str]:
    """Return the types of the keys that are known of the host."""
    files = (*route.known_hosts, *route.global_known_hosts)
    found = [entry for name in _host_names(route) for entry in find_entries(files, name)]
    return {entry.key_type for entry in found if not entry.marker}


def verify(route: Route, key: paramiko.PKey) -> None:
    """Raise HostKeyRefused unless the key is known, or is trusted from now on."""
    if _is_known(route, key):
        return
    if not route.accept_new and key.fingerprint not in route.accept_keys:
        raise HostKeyRefused(_unknown_host_message(route, key))
    if route.known_hosts:
        try:
            _add_key(route, key)
        except OSError as error:
            raise HostKeyRefused(
                f"{route.display_name}: its key cannot be written to {route.known_hosts[0]}: "
                f"{error.strerror}"
            ) from None


def find_entries(files: Iterable[str], name: str) -> Iterator[KnownHostsEntry]:
    """Yield the lines of files that match a host's name; skip files that cannot be read."""
    for file in files:
        try:
            text = Path(file).read_text(errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            marker, words = "", line.split()
            if words and words[0].startswith("@"):
                marker = words.pop(0)
            if len(words) < 3 or words[0].startswith("#") or not _matches(words[0], name):
                continue
            with contextlib.suppress(ValueError):
                yield KnownHostsEntry(file, number, marker, words[1], base64.b64decode(words[2]))


def _is_known(route: Route, key: paramiko.PKey) -> bool:
    """Return whether a key is known; raise HostKeyRefused if it is revoked or another is known."""
    files = (*route.known_hosts, *route.global_known_hosts)
    found = {name: list(find_entries(files, name)) for name in _host_names(route)}
    same = [e for each in found.values() for e in each if e.key == key.asbytes()]
    if revoked := [entry for entry in same if entry.marker == "@revoked"]:
        where = f"{revoked[0].file}:{revoked[0].line}"
        raise HostKeyRefused(
            f"{route.display_name} shows a key that is revoked ({where}), {key.get_name()} "
            f"{key.fingerprint}: ask the host's administrator"
        )
    if any(not entry.marker for entry in same):
        return True
    name = _host_names(route)[0]
    others = [entry for entry in found[name] if not entry.marker]
    if others:
        raise HostKeyRefused(_changed_key_message(route, key, name, others))
    return False


def _host_names(route: Route) -> list[str]:
    """Return the names of a host in known_hosts; only the first can show that its key changed."""
    if route.host_key_alias:
        return [route.host_key_alias.lower()]
    address = route.address.lower()
    return [address] if route.port == 22 else [f"[{address}]:{route.port}", address]


def _matches(patterns: str, name: str) -> bool:
    found = False
    for pattern in patterns.split(","):
        if pattern.startswith("|1|"):
            found |= _hash_name(name, pattern.split("|")[2]) == pattern
            continue
        glob = re.escape(pattern.lstrip("!").lower()).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(glob, name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _hash_name(name: str, salt: str) -> str:
    """Return a host's name hashed as OpenSSH does; empty if the salt is malformed."""
    try:
        digest = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except ValueError:
        return ""
    return f"|1|{salt}|{base64.b64encode(digest).decode()}"


def _add_key(route: Route, key: paramiko.PKey) -> None:
    """Write a key to known_hosts, under a lock, since other processes may do the same."""
    path, name = Path(route.known_hosts[0]), _host_names(route)[0]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if route.hash_known_hosts:
        name = _hash_name(name, base64.b64encode(os.urandom(20)).decode())
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        _lock(file)
        if _is_known(route, key):
            return
        size = os.fstat(file).st_size
        apart = "\n" if size and os.pread(file, 1, size - 1) != b"\n" else ""
        os.write(file, f"{apart}{name} {key.get_name()} {key.get_base64()}\n".encode())
    finally:
        os.close(file)


def _lock(file: int) -> None:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        except OSError:  # a file system without locks; one write of a line is atomic
            return None
        time.sleep(0.01)


def _unknown_host_message(route: Route, key: paramiko.PKey) -> str:
    shows = f"its {key.get_name()} key is {key.fingerprint}"
    if route.accept_keys:
        shows += ", which --ssh_accept_key does not name"
    files = (*route.known_hosts, *route.global_known_hosts)
    if any(
        e.marker == "@cert-authority"
        for name in _host_names(route)
        for e in find_entries(files, name)
    ):
        shows += " (its certificate is not checked: @cert-authority lines are not supported)"
    return (
        f"{route.display_name} is not known: {shows}; if that is the host's own key, "
        f"--ssh_accept_key={key.fingerprint} accepts it (--ssh_accept_new_hosts accepts the keys "
        f"of all new hosts)"
    )


def _changed_key_message(
    route: Route, key: paramiko.PKey, name: str, others: list[KnownHostsEntry]
) -> str:
    alike = [entry for entry in others if entry.key_type == key.get_name()]
    old = (alike or others)[0]
    return (
        f"{route.display_name} shows another key than before, {key.get_name()} {key.fingerprint}, "
        f"and {old.file}:{old.line} has another {old.key_type}: if it was set up again, "
        f"`ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(old.file)}` forgets the old one; "
        f"if not, the connection may be intercepted"
    )
