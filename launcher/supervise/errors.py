"""The base of the launcher's errors, which its programs print as one sentence."""

from collections.abc import Sequence


class LauncherError(Exception):
    """An error of the launcher; the message is a sentence that says what to do about it."""


def join_names(names: Sequence[str]) -> str:
    """Return the names as a list for a sentence; only the first three of five or more."""
    if len(names) < 5:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"
