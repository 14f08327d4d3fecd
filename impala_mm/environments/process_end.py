"""Descriptions of how a user's process ended, and of where in its code it was."""

import os
import re
import signal
from pathlib import Path
from typing import Any

# Exit code of a worker process whose environments closed the connection by which it answers.
CLOSED_CONNECTION = 84


def describe_end(code: int) -> str:
    """Return in words how a process ended, by the exit code that `subprocess` gives."""
    if code == CLOSED_CONNECTION:
        return "closed files and sockets that it did not open, such as by os.closerange"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def text_of(file: Any, start: int = 0) -> str:
    """Return a file's content from `start` on, without moving its position, which is shared."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size - start, start).decode(errors="replace")


def frames_of_stack(stack: str) -> list[str]:
    """Return faulthandler's frames of the user's code, the innermost last, as tracebacks do."""
    found = re.findall(r'^  (File ".*", line \d+ in .*)$', stack, re.MULTILINE)
    ours = [i for i, frame in enumerate(found) if str(Path(__file__).parent) in frame]
    frames = found[: ours[0]] if ours else found
    return [
        *["Traceback (most recent call last):"][: len(frames)],
        *(f"  {frame}" for frame in reversed(frames)),
    ]
