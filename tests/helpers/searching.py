"""Searches simulated hosts for parts of a secret, in files and in memory."""

import contextlib
import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization


def secrets_of(laptop, key, passphrase):
    """Return the parts of a private key by which each copy of it is found."""
    path = laptop.path(key)
    private = serialization.load_ssh_private_key(path.read_bytes(), passphrase or None)
    seed = private.private_bytes(
        serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
    )
    lines = path.read_bytes().splitlines()[1:-1]
    # From the fourth line on, the file's text is the private part.
    return [seed, *lines[3:5], *([passphrase] if passphrase else [])]


def places_of(host, secrets):
    """Return where a host holds one of the secrets: files, memory, environments, command lines."""
    inside = Path(f"/proc/{host.pids('')[0]}/root")
    folders = host.root, inside / "dev" / "shm", inside / "run"
    found = [path for each in folders for path in files_with(each, secrets)]
    for process in (Path(f"/proc/{pid}") for pid in host.pids("")):
        files = process / "environ", process / "cmdline"
        found += [path for path in files if has(path, secrets)]
        with contextlib.suppress(OSError), (process / "mem").open("rb") as memory:
            for line in (process / "maps").read_text().splitlines():
                begin, end = (int(each, 16) for each in line.split()[0].split("-"))
                with contextlib.suppress(OSError, OverflowError, ValueError):
                    memory.seek(begin)
                    content = memory.read(end - begin)
                    if any(secret in content for secret in secrets):
                        found.append(process / "mem")
                        break
    return found


def files_with(folder, secrets):
    """Return the files below a folder that contain one of the secrets; files may come and go."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return [path for path in found if has(path, secrets)]


def has(path, secrets):
    """Return whether a file contains one of the secrets."""
    with contextlib.suppress(OSError):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            return any(secret in content for secret in secrets)
    return False
