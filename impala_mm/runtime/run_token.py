"""The token that actors must send to learners, in a file that only its owner can read."""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from impala_mm.config import flags
from impala_mm.config.settings import Config


def read_or_make(path: str) -> str:
    """Return the token in `path`, or in the user's default file; create a missing file."""
    file = Path(path) if path else _default()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not file.exists():
        # It must appear complete: a learner and its actors may read it in the same instant.
        made = file.with_name(f"{file.name}-{secrets.token_hex(8)}")
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as created:
            created.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(made, file)
        made.unlink()
    mode = file.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(f"{file} can be read by others: chmod 600 {file}")
    token = file.read_text().strip()
    if not token:
        raise PermissionError(f"{file} is empty: remove it, and the next process creates a new one")
    return token


def _default() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "impala_mm" / "token"


def read_token(config: Config) -> str:
    """Return the token in --token_file; exit with code 2 if it cannot be read or created."""
    try:
        return read_or_make(config.token_file)
    except OSError as error:
        if not error.errno or config.token_file:
            flags.refuse(f"--token_file: {error}")
        flags.refuse(
            f"the token of your runs cannot be kept in {_default()} ({error.strerror}): set "
            f"XDG_CONFIG_HOME=FOLDER to keep it in another folder, or give --token_file=PATH"
        )
