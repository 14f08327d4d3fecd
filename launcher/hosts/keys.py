"""The user's private keys, from files and the SSH agent, in the order in which hosts see them.

The CSV's key is first, then the configuration's, then the agent's other keys; the order matters,
since servers hang up after a handful. A key that is in a file and in the agent is taken from the
file. The passphrase of an encrypted key is asked for once in the life of this process, however many
hosts want the key; neither the passphrase nor the key is written anywhere.
"""

import atexit
import base64
import copy
import getpass
import os
import socket
import struct
import termios
import threading
from pathlib import Path
from typing import NamedTuple

import paramiko
from paramiko.agent import AgentKey, AgentSSH

from launcher.hosts.ssh_config import HostUnavailable, Route

_AGENT_SECONDS = 10  # for an answer; the agent may ask its user first
_TRIES = 3  # for a passphrase
_asking = threading.Lock()
_unlocked: dict[str, list["Key"]] = {}  # by path; empty lists: the user gave no passphrase


class Key(NamedTuple):
    """A key that can be tried."""

    name: str  # as messages call it
    key: paramiko.PKey


class FoundKeys(NamedTuple):
    """The keys for a host."""

    keys: list[Key]  # in the order in which to try them
    troubles: list[str]  # why other keys cannot be tried
    encrypted: list[str]  # files of those whose passphrase is missing


def find_keys(route: Route, agent: "SshAgent") -> FoundKeys:
    """Return the keys for a host."""
    if route.key_path and not Path(route.key_path).is_file():
        raise HostUnavailable(
            f"{route.display_name}: ssh_key_path {route.key_path}: there is no such file; name a "
            f"private key of this machine, or leave the column empty"
        )
    held = {key.asbytes(): Key(f"the agent's {_name(key)}", key) for key in agent.signing_keys()}
    found: dict[tuple[bytes, bool], Key] = {}
    troubles, encrypted = [agent.trouble] if agent.trouble else [], list[str]()
    for path in filter(None, (route.key_path, *route.identity_files)):
        try:
            own = _unlocked.get(path) or read_keys(path)
        except (OSError, ValueError, TypeError) as error:
            public = _public_key(path)
            own = [held[public]] if public in held else []
            if not own and isinstance(error, TypeError):
                encrypted.append(path)
                troubles.append(f"{path} is encrypted: ssh-add it")
            elif not own and not isinstance(error, FileNotFoundError):
                troubles.append(f"{path}: {getattr(error, 'strerror', '') or error}")
        for each in own:
            found.setdefault((each.key.asbytes(), each.key.public_blob is None), each)
    if not route.identities_only:
        for public, key in held.items():
            found.setdefault((public, True), key)
    return FoundKeys(list(found.values()), troubles, encrypted)


def read_keys(path: str, passphrase: bytes | None = None) -> list[Key]:
    """Return the key of a file; first with its certificate, if there is one beside the file.

    Raise OSError, TypeError if the file is encrypted and there is no passphrase, and ValueError if
    it is no key or the passphrase is wrong.
    """
    try:
        key = paramiko.PKey.from_path(path, passphrase)  # type: ignore[arg-type]
    except (OSError, TypeError):
        raise
    except Exception:  # paramiko and cryptography raise many kinds for what they cannot read
        raise ValueError(
            f"it is no private key that can be read, and no agent has it; `ssh-keygen -p -f "
            f"{path}` may convert it"
        ) from None
    if key.public_blob is None:
        return [Key(path, key)]
    alone = copy.copy(key)
    alone.public_blob = None
    return [Key(f"{path}-cert.pub", key), Key(path, alone)]


def unlock(path: str) -> list[Key]:
    """Return the keys of an encrypted file, ask for its passphrase if it is the first time.

    The result is empty without a terminal, or if the user gives no passphrase that fits.
    """
    with _asking:
        if path not in _unlocked:
            _unlocked[path] = _ask(path) if _has_terminal() else []
        return _unlocked[path]


def _has_terminal() -> bool:
    return os.isatty(0) and os.isatty(2)


def _ask(path: str) -> list[Key]:
    # Ctrl-C ends the program while this thread waits, and the terminal must then echo again.
    atexit.register(termios.tcsetattr, 0, termios.TCSADRAIN, termios.tcgetattr(0))
    for number in range(_TRIES):
        again = "wrong; " * (number > 0)
        try:
            given = getpass.getpass(f"{again}passphrase of {path} (empty: leave this key out): ")
            if not given:
                break
            return read_keys(path, given.encode())
        except ValueError:
            continue
        except (EOFError, OSError):  # the terminal was closed
            break
    return []


def _public_key(path: str) -> bytes:
    """Return the public key in a private key's file, or in a public key's file; empty: none."""
    for each in (path, f"{path}.pub"):
        try:
            text = Path(each).read_text(errors="replace")
            if text.startswith("-----BEGIN OPENSSH"):  # its public part is never encrypted
                message = paramiko.Message(base64.b64decode(text.split("-----")[2])[15:])
                for _ in range(3):  # the cipher, the key derivation and its options
                    message.get_binary()
                message.get_int()
                return message.get_binary()
            if text.startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(text.split()[1])
        except (OSError, ValueError, IndexError, struct.error):  # it is missing, or another file
            continue
    return b""


class SshAgent(AgentSSH):
    """The SSH agent at a socket; without the socket it has no keys. Close it after the login."""

    def __init__(self, path: str):
        super().__init__()
        self.trouble = ""
        self._conn = socket.socket(socket.AF_UNIX)
        if not path:
            return
        # Hundreds of logins may call it at once: each waits until the agent accepts its connection.
        limit = struct.pack("ll", _AGENT_SECONDS, 0)
        self._conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            self._conn.connect(path)
            self._conn.settimeout(_AGENT_SECONDS)
            self._connect(self._conn)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException) as error:
            self.trouble = f"the SSH agent {path} does not answer: {error}"

    def signing_keys(self) -> list[AgentKey]:
        """Return the agent's keys."""
        return [_SafeAgentKey(self, key.blob, key.comment) for key in self.get_keys()]

    def close(self) -> None:
        """Close the connection to the agent."""
        self._conn.close()


class _SafeAgentKey(AgentKey):
    """A key of the agent: if the agent does not sign, one attempt is lost, not the connection."""

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:  # type: ignore[override]
        try:
            return super().sign_ssh_data(data, algorithm)  # type: ignore
        except (OSError, paramiko.SSHException):
            return b""


def _name(key: AgentKey) -> str:
    return key.comment or key.get_name()
