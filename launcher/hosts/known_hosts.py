"""The check of hosts' keys: reads and writes known_hosts files as OpenSSH does.

An unknown host is refused, or trusted at first use if the user wants that. A host that shows
another key than before is always refused. paramiko's own reader knows neither patterns nor revoked
keys.
"""

import base64
import contextlib
import fcntl
import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import paramiko

from launcher.hosts.ssh_config import HostUnavailable, Route
from launcher.supervise.json_files import private


class KnownHostsEntry(NamedTuple):
    """A line of a known_hosts file that matches a host."""

    name: str  # of the host
    file: str
    line: int
    marker: str  # "", "@revoked" or "@cert-authority"
    key_type: str  # such as ssh-ed25519
    key: bytes


def known_key_types(route: Route) -> set[str]:
    """Return the types of the keys that are known of the host."""
    return {entry.key_type for entry in find_entries(route) if not entry.marker}


def verify(route: Route, key: paramiko.PKey) -> None:
    """Raise HostUnavailable unless the key is known, or is trusted from now on."""
    if _is_known(route, key):
        return
    if not route.accept_new and key.fingerprint not in route.accept_keys:
        raise HostUnavailable(_unknown_host_message(route, key))
    if route.known_hosts:
        try:
            _add_key(route, key)
        except OSError as error:
            raise HostUnavailable(
                f"{route.display_name}: its key cannot be written to {route.known_hosts[0]}: "
                f"{error.strerror}"
            ) from None


def find_entries(route: Route) -> list[KnownHostsEntry]:
    """Return the lines that match a host's names; skip files that cannot be read."""
    found = []
    for file in (*route.known_hosts, *route.global_known_hosts):
        try:
            lines = Path(file).read_text(errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#"):
                continue
            try:
                key = base64.b64decode(words[2])
            except ValueError:  # a damaged line
                continue
            for name in _host_names(route):
                if _matches(words[0], name):
                    found.append(KnownHostsEntry(name, file, number, marker, words[1], key))
    return found


def _is_known(route: Route, key: paramiko.PKey) -> bool:
    """Return whether a key is known; raise HostUnavailable if it is revoked or another is known."""
    found = find_entries(route)
    same = [entry for entry in found if entry.key == key.asbytes()]
    for entry in same:
        if entry.marker == "@revoked":
            raise HostUnavailable(
                f"{route.display_name} shows a key that is revoked ({entry.file}:{entry.line}), "
                f"{key.get_name()} {key.fingerprint}: ask the host's administrator"
            )
    if any(not entry.marker for entry in same):
        return True
    # Only the first name can show that a host's key changed.
    others = [e for e in found if not e.marker and e.name == _host_names(route)[0]]
    if others:
        raise HostUnavailable(_changed_key_message(route, key, others))
    return False


def _host_names(route: Route) -> list[str]:
    """Return the names of a host in known_hosts."""
    if route.host_key_alias:
        return [route.host_key_alias.lower()]
    address = route.address.lower()
    return [address] if route.port == 22 else [f"[{address}]:{route.port}", address]


def _matches(patterns: str, name: str) -> bool:
    found = False
    for pattern in patterns.split(","):
        if pattern.startswith("|1|"):
            with contextlib.suppress(ValueError, IndexError, AssertionError):  # a damaged line
                found |= paramiko.HostKeys.hash_host(name, pattern) == pattern
            continue
        glob = re.escape(pattern.lstrip("!").lower()).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(glob, name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _add_key(route: Route, key: paramiko.PKey) -> None:
    """Write a key to known_hosts, under a lock, since other processes may do the same."""
    path, name = Path(route.known_hosts[0]), _host_names(route)[0]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if route.hash_known_hosts:
        name = paramiko.HostKeys.hash_host(name)
    with open(path, "ab+", buffering=0, opener=private) as file:
        with contextlib.suppress(OSError):  # a file system without locks; a line is written at once
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_known(route, key):
            return
        size = os.fstat(file.fileno()).st_size
        apart = "\n" if size and os.pread(file.fileno(), 1, size - 1) != b"\n" else ""
        file.write(f"{apart}{name} {key.get_name()} {key.get_base64()}\n".encode())


def _unknown_host_message(route: Route, key: paramiko.PKey) -> str:
    shows = f"its {key.get_name()} key is {key.fingerprint}"
    if route.accept_keys:
        shows += ", which --ssh_accept_key does not name"
    if any(entry.marker == "@cert-authority" for entry in find_entries(route)):
        shows += " (its certificate is not checked: @cert-authority lines are not supported)"
    return (
        f"{route.display_name} is not known: {shows}; if that is the host's own key, "
        f"--ssh_accept_key={key.fingerprint} accepts it (--ssh_accept_new_hosts accepts the keys "
        f"of all new hosts)"
    )


def _changed_key_message(route: Route, key: paramiko.PKey, others: list[KnownHostsEntry]) -> str:
    alike = [entry for entry in others if entry.key_type == key.get_name()]
    old = (alike or others)[0]
    return (
        f"{route.display_name} shows another key than before, {key.get_name()} {key.fingerprint}, "
        f"and {old.file}:{old.line} has another {old.key_type}: if it was set up again, "
        f"`ssh-keygen -R {shlex.quote(old.name)} -f {shlex.quote(old.file)}` forgets the old one; "
        f"if not, the connection may be intercepted"
    )
