"""The token that actors show to learners: a file that only its owner can read."""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from impala_mm.config import flags
from impala_mm.config.settings import Config


def read_or_make(path: str) -> str:
    """The token in `path`, or in this user's own file; made by the first process that needs it."""
    file = Path(path) if path else _default()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not file.exists():
        # Whole or not at all: a learner and its actors may need it in the same instant.
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
        raise PermissionError(f"{file} is empty: remove it, and the next process makes a new one")
    return token


def _default() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "impala_mm" / "token"


def read_token(config: Config) -> str:
    """The secret of --token_file."""
    try:
        return read_or_make(config.token_file)
    except OSError as error:
        flags.refuse(f"--token_file: {error}")
