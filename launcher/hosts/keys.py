"""The user's private keys, from files and the SSH agent, in the order in which hosts see them.

The CSV's key is first, then the configuration's, then the agent's other keys; the order matters,
since servers hang up after a handful. A key that is in a file and in the agent is taken from the
file.
"""

import base64
import contextlib
import io
import re
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import paramiko
from paramiko.agent import AgentKey, AgentSSH

from launcher.hosts.ssh_config import Route, Unreachable

_AGENT_SECONDS = 10.0  # for an answer; the agent may ask its user first
_CLASSES: dict[str, type[paramiko.PKey]] = {
    "ssh-ed25519": paramiko.Ed25519Key,
    "ssh-rsa": paramiko.RSAKey,
    "RSA": paramiko.RSAKey,
    "EC": paramiko.ECDSAKey,
    **dict.fromkeys(paramiko.ECDSAKey.identifiers(), paramiko.ECDSAKey),
}


class Key(NamedTuple):
    """A key that can be tried."""

    name: str  # as messages call it
    key: paramiko.PKey
    text: str = ""  # of its file and its certificate; empty: the agent keeps the key


class Identity(NamedTuple):
    """The content of a key file."""

    key: Key | None  # None: it cannot be used
    public: bytes  # the public key; an agent may have its private part
    trouble: str
    is_encrypted: bool = False


class FoundKeys(NamedTuple):
    """The keys for a host."""

    keys: list[Key]  # in the order in which to try them
    troubles: list[str]  # why other keys cannot be tried
    encrypted: list[str]  # files of those whose passphrase is missing


def find_keys(route: Route, agent: "SshAgent", unlocked: Callable[[str], list[Key]]) -> FoundKeys:
    """Return the keys for a host; `unlocked` returns those of an encrypted file, if it has any."""
    held = {key.key.asbytes(): key for key in agent.keys}
    if route.key_path and not Path(route.key_path).is_file():
        raise Unreachable(
            f"{route.display_name}: ssh_key_path {route.key_path}: there is no such file; name a "
            f"private key of this machine, or leave the column empty"
        )
    found: dict[bytes, Key] = {}
    troubles, encrypted = [agent.trouble] if agent.trouble else [], list[str]()
    for path in filter(None, (route.key_path, *route.identity_files)):
        read = read_identity(path)
        key = read.key or held.get(read.public)
        if key:
            public = key.key.asbytes()
            if certified := with_certificate(path, key):
                found.setdefault(b"certified" + public, certified)
            found.setdefault(public, key)
        elif read.is_encrypted and (own := unlocked(path)):
            for each in own:
                found.setdefault(each.name.encode(), each)
        elif read.trouble:
            troubles.append(read.trouble)
            encrypted += [path] * read.is_encrypted
    if not route.identities_only:
        for public, key in held.items():
            found.setdefault(public, key)
    return FoundKeys(list(found.values()), troubles, encrypted)


def read_identity(path: str) -> Identity:
    """Read a key file, which may be missing, public, encrypted, or no key at all."""
    try:
        text = Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return Identity(None, b"", "")
    except OSError as error:
        return Identity(None, b"", f"{path}: {error.strerror}")
    try:
        return Identity(Key(path, private_key(text), text), b"", "")
    except paramiko.PasswordRequiredException:
        return Identity(None, _public_key(path, text), f"{path} is encrypted: ssh-add it", True)
    except ValueError:
        trouble = f"{path} is no private key that can be read; `ssh-keygen -p -f {path}` may fix it"
        if _parse_public_key(text):
            trouble = f"{path} is a public key, and no agent has its private one"
        return Identity(None, _public_key(path, text), trouble)


def private_key(text: str, passphrase: str | None = None) -> paramiko.PKey:
    """Return the private key in `text`; raise ValueError, or paramiko's error if encrypted."""
    found = re.search(r"BEGIN (\w+) PRIVATE KEY", text)
    named = found[1] if found else ""
    kind = _CLASSES.get(_key_type(_embedded_public_key(text)) if named == "OPENSSH" else named)
    if kind is None:
        raise ValueError
    try:
        key = kind.from_private_key(io.StringIO(text), passphrase)
        if certificate := text.partition("PRIVATE KEY-----\n")[2].partition("KEY-----")[2].strip():
            key.load_certificate(certificate)
    except paramiko.PasswordRequiredException:
        raise
    except (paramiko.SSHException, ValueError, IndexError, struct.error):
        raise ValueError from None
    return key


def _embedded_public_key(text: str) -> bytes:
    """Return the public part of a private key in OpenSSH's format, which is never encrypted."""
    _, begins, rest = text.partition("-----BEGIN OPENSSH PRIVATE KEY-----")
    with contextlib.suppress(ValueError, struct.error):
        message = paramiko.Message(base64.b64decode(rest.partition("-----END")[0]))
        if begins and message.get_bytes(15) == b"openssh-key-v1\0":
            for _ in range(3):  # the cipher, the key derivation and its options
                message.get_binary()
            message.get_int()
            return message.get_binary()
    return b""


def _public_key(path: str, text: str) -> bytes:
    """Return the public key of a public or an encrypted key file, or of PATH.pub beside it."""
    if within := _embedded_public_key(text):
        return within
    with contextlib.suppress(OSError):
        text = text if _parse_public_key(text) else Path(f"{path}.pub").read_text(errors="replace")
    return _parse_public_key(text)


def _parse_public_key(text: str) -> bytes:
    words = text.split()
    with contextlib.suppress(ValueError):
        if len(words) > 1 and words[0].startswith(("ssh-", "ecdsa-", "sk-")):
            return base64.b64decode(words[1])
    return b""


def _key_type(public: bytes) -> str:
    return paramiko.Message(public).get_binary().decode(errors="replace") if public else ""


def with_certificate(path: str, key: Key, passphrase: str | None = None) -> Key | None:
    """Return the key with the certificate beside its file, or None if there is none."""
    try:
        text = f"{key.text.rstrip()}\n{Path(f'{path}-cert.pub').read_text()}"
        return Key(f"{path}-cert.pub", private_key(text, passphrase), text)
    except (OSError, ValueError):
        return None


class SshAgent(AgentSSH):
    """The SSH agent at a socket; without the socket it has no keys. Close it after the login."""

    def __init__(self, path: str):
        super().__init__()
        self.keys: list[Key] = []
        self.trouble = ""
        self._socket = socket.socket(socket.AF_UNIX)
        if not path:
            return
        self._socket.settimeout(_AGENT_SECONDS)
        try:
            self._connect_socket(path)
            self._connect(self._socket)  # type: ignore[attr-defined]
        except (OSError, ValueError, paramiko.SSHException) as error:
            self.trouble = f"the SSH agent {path} does not answer: {error}"
        self.keys = [
            Key(f"the agent's {_display_name(key)}", _SafeAgentKey(key)) for key in self.get_keys()
        ]

    def _connect_socket(self, path: str) -> None:
        until = time.monotonic() + _AGENT_SECONDS
        while True:
            try:
                return self._socket.connect(path)
            except BlockingIOError:  # hundreds of logins may call it at once
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def close(self) -> None:
        """Close the connection to the agent."""
        self._socket.close()


def _display_name(key: AgentKey) -> str:
    return getattr(key, "comment", "") or key.get_name()


class _SafeAgentKey(AgentKey):
    """A key of the agent: if the agent does not sign, one attempt is lost, not the connection."""

    def __init__(self, key: AgentKey):
        super().__init__(key.agent, key.blob)

    def sign_ssh_data(self, *arguments: object) -> bytes:  # type: ignore[override]
        try:
            return super().sign_ssh_data(*arguments)  # type: ignore
        except (OSError, paramiko.SSHException):
            return b""
