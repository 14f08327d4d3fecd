"""The claim of a folder of unrolls: one process writes there, and no other one's files are touched.

`spill` claims the folder of a replay, and `data_set` that of recorded games.
"""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO

from impala_mm.config.errors import UserMistake

_LOCK = "lock"


def claim(
    about: Path, what: str, check: Callable[[], None], mistake: type[UserMistake] = UserMistake
) -> IO[str]:
    """Make a folder this process's own; return its lock, which is held until it is closed.

    The folder is made if it does not exist. `about` is the file that describes it, and `what` lies
    there, in words; if the file exists, `check` is called, which may raise an exception. Raises
    `mistake` if other files lie there or another process uses it, OSError if it is not writable.
    """
    folder = about.parent
    folder.mkdir(parents=True, exist_ok=True)
    if about.exists():
        check()
    elif any(p.name != _LOCK and not p.name.endswith(".part") for p in folder.iterdir()):
        raise mistake(
            f"{folder} is not empty, and no {what} lies there: name an empty or new folder"
        )
    lock = (folder / _LOCK).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise mistake(f"{folder} is used by another process: end that first") from None
    for part in folder.glob("*.part"):  # of a process that was killed
        part.unlink()
    return lock
