"""The credentials of runs, in a file that only its owner can read: the token file.

Its first line is the secret that actors send to learners. Certificates and keys follow, by which
actors and learners encrypt what they send and know each other. The frontend makes one for each run;
processes that are started by hand share one of their user.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
import stat
from pathlib import Path
from typing import NamedTuple

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.runtime import certificates


class TokenFile(NamedTuple):
    """The token file of a process, in words that other hosts may read on the network."""

    host: str
    path: str
    digest: str  # SHA-256 of the content


def make(secure: bool = True) -> str:
    """Return the content of a new token file; with `secure`, which may raise CannotMake, all."""
    return f"{secrets.token_hex(32)}\n{certificates.make() if secure else ''}".strip()


def read_or_make(path: str, secure: bool = True) -> str:
    """Return the content of the token file `path`, or of the user's own; create a missing one.

    With `secure`, a file without certificates (of an earlier version) gets them. Without it, only
    the first line is returned. Raises OSError, and `certificates.CannotMake`.
    """
    # Behind a link, the file that it leads to is replaced and not the link.
    file = (Path(path) if path else _default()).resolve()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not file.exists():
        # It must appear complete: a learner and its actors may read it in the same instant.
        made = _write_beside(file, make(secure))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(made, file)
        finally:
            made.unlink()
    content = _read(file)
    if not secure:
        return content.partition("\n")[0]
    if not certificates.split(content):
        with file.open("r+") as locked:  # whoever waits for the lock finds the certificates
            fcntl.flock(locked, fcntl.LOCK_EX)
            content = _read(file)
            if not certificates.split(content):
                content = f"{content}\n{certificates.make()}".strip()
                _write_beside(file, content).replace(file)
    return content


def _write_beside(file: Path, content: str) -> Path:
    """Write a new file of this user in the same folder, and return its path."""
    made = file.with_name(f"{file.name}-{secrets.token_hex(8)}")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as created:
        created.write(content)
    return made


def _read(file: Path) -> str:
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK)) as opened:
        found = os.fstat(opened.fileno())
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PermissionError(f"{file} can be read by others: chmod 600 {file}")
        # Only root gets here with another user's file, often in a container whose user has another
        # number outside. In a folder such as /tmp anybody may have made it.
        if found.st_uid != os.geteuid() and file.parent.stat().st_mode & 0o022:
            raise PermissionError(f"{file} belongs to another user, who can read it: remove it")
        content = opened.read().strip()
    if not content:
        raise PermissionError(f"{file} is empty: remove it, and the next process creates a new one")
    if content.startswith("-----") or not (
        "-----" not in content or certificates.is_whole(content)
    ):
        raise PermissionError(
            f"{file} is damaged: copy it again, or remove it for the next process to make one"
        )
    return content


def _default() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "impala_mm" / "token"


def read_token(config: Config) -> str:
    """Return the content of --token_file; exit with code 2 if it cannot be read or created.

    With --transport_security=none it contains no certificates.
    """
    try:
        return read_or_make(config.token_file, config.transport_security != "none")
    except certificates.CannotMake as error:
        flags.refuse(
            f"no certificates can be made for {config.token_file or _default()}: {error}; copy "
            f"that file from a host that has it (scp HOST:.config/impala_mm/token "
            f"~/.config/impala_mm/token), or give --transport_security=none to all processes"
        )
    except OSError as error:
        if not error.errno or config.token_file:
            flags.refuse(f"--token_file: {error}")
        flags.refuse(
            f"the token of your runs cannot be kept in {_default()} ({error.strerror}): set "
            f"XDG_CONFIG_HOME=FOLDER to keep it in another folder, or give --token_file=PATH"
        )


def describe(config: Config) -> TokenFile:
    """Return what identifies a learner's --token_file; like `read_token`, create it.

    Exit with code 2 if it cannot be read or created, or has no certificate for a learner.
    """
    content = read_token(config)
    path = Path(config.token_file).absolute() if config.token_file else _default()
    if certificates.split(content) and content == certificates.without_learner(content):
        flags.refuse(
            f"{path} is the token file of a host without learners, and has only the certificate "
            f"of actors: copy a learner's file to start a learner here"
        )
    digest = hashlib.sha256(content.encode()).hexdigest()
    return TokenFile(socket.gethostname(), str(path), digest)


def make_file(path: str, security: str) -> None:
    """Make a run's token file for --transport_security; the script of a Slurm job calls this."""
    try:
        read_or_make(path, security != "none")
    except (OSError, certificates.CannotMake) as error:
        flags.refuse(f"the token file {path} cannot be made: {error}")
