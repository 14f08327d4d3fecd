"""The description of a run that trackers get."""

from pathlib import Path
from typing import Any, NamedTuple


class TrackedRun(NamedTuple):
    """A run as a tracker sees it."""

    logdir: Path
    settings: dict[str, Any]  # all flags
    tags: list[str]  # those of --track_tags
