"""Times in words, for progress lines and reports."""


def format_duration(seconds: float) -> str:
    """Return a time in the unit in which it reads best: 73 s, 22 min, 1.6 h."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
