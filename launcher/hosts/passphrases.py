"""Encrypted private keys without an agent, which their user unlocks at the terminal.

The passphrase of a key is asked for once in the life of this process, however many hosts want the
key. Neither the passphrase nor the key is written anywhere.
"""

import atexit
import contextlib
import getpass
import sys
import termios
import threading
from pathlib import Path

import paramiko

from launcher.hosts import keys

_TRIES = 3
_lock = threading.Lock()
_unlocked: dict[str, list[keys.Key]] = {}  # by path; empty lists: the user gave no passphrase


def unlock(path: str) -> list[keys.Key]:
    """Return the key in an encrypted file, ask for its passphrase if it is the first time.

    A certificate beside the file comes first. The result is empty without a terminal, or if the
    user gives no passphrase that fits.
    """
    with _lock:
        if path not in _unlocked:
            _unlocked[path] = _ask(path) if _has_terminal() else []
        return _unlocked[path]


def known(path: str) -> list[keys.Key]:
    """Return the key in an encrypted file if it was unlocked before."""
    return _unlocked.get(path, [])


def _has_terminal() -> bool:
    with contextlib.suppress(AttributeError, ValueError):  # they may be closed
        return sys.stdin.isatty() and sys.stderr.isatty()
    return False


def _ask(path: str) -> list[keys.Key]:
    # Ctrl-C ends the program while this thread waits, and the terminal must then echo again.
    before = termios.tcgetattr(sys.stdin)
    atexit.register(termios.tcsetattr, sys.stdin, termios.TCSADRAIN, before)
    text = Path(path).read_text(errors="replace")
    for number in range(_TRIES):
        again = "wrong; " * (number > 0)
        try:
            given = getpass.getpass(f"{again}passphrase of {path} (empty: leave this key out): ")
        except (EOFError, OSError):
            return []
        if not given:
            return []
        with contextlib.suppress(ValueError, paramiko.SSHException):
            key = keys.Key(path, keys.private_key(text, given), text)
            certified = keys.with_certificate(path, key, given)
            return [certified, key] if certified else [key]
    return []
