"""Durations as people read them, for messages and tables."""


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, such as "80 s", "12 min" or "3.5 h"."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
