"""The rate of a disturbed run while nothing disturbs it, by what its learners have recorded."""

import itertools
from collections.abc import Iterator, Sequence

from tests.chaos.evidence import Event, Update

LEAST_SHARE = 0.6  # of the undisturbed rate
LONGEST_PAUSE = 30.0  # seconds without an update while nothing disturbs the run
_LEAST_QUIET = 20.0  # seconds without which no rate is computed


def check_rate(events: Sequence[Event], sessions: Sequence[Sequence[Update]]) -> Iterator[str]:
    """Find a low rate, or a long pause, while nothing disturbs the run."""
    calm, quiet, seconds = measure(events, sessions)
    if not calm:
        yield "no step was trained on while the run was left alone"
    elif seconds >= _LEAST_QUIET and quiet < LEAST_SHARE * calm:
        yield (
            f"{quiet:.0f} steps/s in {seconds:.0f} s outside of disturbances are "
            f"{100 * quiet / calm:.0f}% of the undisturbed {calm:.0f}"
        )
    times = sorted(update.time for session in sessions for update in session)
    for begin, end in _quiet(events):
        inside = [begin, *(t for t in times if begin < t < end), end]
        for one, other in itertools.pairwise(inside):
            if other - one > LONGEST_PAUSE:
                since = next((e for e in reversed(events) if e.whole <= one), events[0])
                yield (
                    f"no update for {other - one:.0f} s, from {one - events[0].begin:.0f} s on, "
                    f"after: {since.words}"
                )


def measure(
    events: Sequence[Event], sessions: Sequence[Sequence[Update]]
) -> tuple[float, float, float]:
    """Return the steps/s of calm times and of those outside of disturbances, and their seconds."""
    quiet = _quiet(events)
    calm = [(event.begin, event.end) for event in events if event.calm]
    rates = []
    for intervals in (calm, quiet):
        seconds = sum(end - begin for begin, end in intervals)
        steps = sum(
            update.steps
            for session in sessions
            for update in session
            if any(begin < update.time <= end for begin, end in intervals)
        )
        rates.append(steps / seconds if seconds else 0.0)
    return rates[0], rates[1], sum(end - begin for begin, end in quiet)


def _quiet(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return the times between disturbances, in which the run must be undisturbed again."""
    disturbing = sorted((event for event in events if not event.calm), key=lambda e: e.begin)
    found, since = [], None
    for event in disturbing:
        if since is not None and event.begin > since:
            found.append((since, event.begin))
        since = max(since or 0.0, event.whole)
    if since is not None and (end := max(event.end for event in events)) > since:
        found.append((since, end))
    return found
