"""The time before the first unroll: what the run waits for, and whether it waits in vain.

`monitor` asks while no learner has received an unroll.
"""

import time
from collections.abc import Mapping

# Seconds after the first actor gave up in which others may join, if their number is not known, and
# after the first invalid unroll in which other actors may send a valid one. An actor may need
# minutes to load TensorFlow from a slow file system.
_OTHERS_SECONDS = 300.0
# Seconds after the first invalid unroll in which its own actor may send a valid one, at least.
_INVALID_SECONDS = 10.0
# Seconds of waiting until the first line; the pauses between lines grow up to a minute.
_FIRST_LINE_SECONDS, _LONGEST_PAUSE = 5.0, 60.0


class NoUnrollComes(Exception):
    """No actor has sent a valid unroll or will send one, so that the run can make no progress."""


class FirstUnroll:
    """The wait for a run's first unroll."""

    def __init__(self, expected: int | None, has_source: bool = False):
        """Wait for `expected` actors; None: their number is not known.

        `has_source`: the algorithm has a source of its own, which may need no actors.
        """
        self._expected, self._has_source = expected, has_source
        self._began = time.monotonic()
        self._has_connected = False  # whether an actor was connected before
        self._next_line = _FIRST_LINE_SECONDS  # seconds of waiting
        # time.monotonic() when the first actor gave up, and when the first invalid unroll came
        self._first_gave_up: float | None = None
        self._first_mistake: float | None = None

    def restart(self) -> None:
        """Count the seconds of waiting from now on: actors could not play before."""
        self._began, self._next_line = time.monotonic(), _FIRST_LINE_SECONDS

    def is_line_due(self) -> bool:
        """Return whether to print what the run waits for: after 5, 10, 20, 40, 80, 140, ... s."""
        waited = time.monotonic() - self._began
        if waited < self._next_line:
            return False
        self._next_line = waited + min(self._next_line, _LONGEST_PAUSE)
        return True

    def describe(self, connected: int, gave_up: int) -> str:
        """Return what the run waits for, in words, and for how long."""
        self._has_connected |= connected > 0
        expected = None if self._expected is None else self._expected - gave_up
        if connected and (expected or 0) > connected:
            what = f"{connected} of {expected} actors connected, no unroll yet"
        elif connected:
            what = f"{_actors(connected)} connected, no unroll yet"
        elif self._has_connected and (not gave_up if expected is None else expected):
            what = "no actor is connected any more, no unroll yet"
        elif expected:
            what = f"{_actors(expected)} {'is' if expected == 1 else 'are'} starting"
        elif gave_up:
            what = f"{_actors(gave_up)} gave up, no other actor is connected"
        elif self._has_source:
            what = "the algorithm's source has returned no batch yet, and no actor has connected"
        else:
            what = "no actor has connected yet"
        return f"{what} ({time.monotonic() - self._began:.0f} s)"

    def why_none_comes(
        self, connected: int, gave_up: Mapping[int, str], mistakes: Mapping[int, str]
    ) -> str:
        """Return why no valid unroll can come any more; empty if one may still come.

        By actor, `gave_up` says why it ended, `mistakes` what is wrong in its unrolls.
        """
        self._has_connected |= connected > 0
        if why := self._why_none_is_valid(connected, gave_up, mistakes):
            return why
        if not gave_up:
            return ""
        now = time.monotonic()
        # It is not set anew when one that was started again joins, since it may give up again.
        self._first_gave_up = self._first_gave_up or now
        if connected or (self._expected is None and now - self._first_gave_up < _OTHERS_SECONDS):
            return ""
        if self._expected is not None and len(gave_up) < self._expected:
            return ""
        number, reason = min(gave_up.items())
        all_of = "the only actor" if len(gave_up) == 1 else f"all {len(gave_up)} actors"
        return f"{all_of} gave up (actor {number}: {reason}), so no unroll can come"

    def _why_none_is_valid(
        self, connected: int, gave_up: Mapping[int, str], mistakes: Mapping[int, str]
    ) -> str:
        if not mistakes:
            self._first_mistake = None  # those that sent them have left
            return ""
        now = time.monotonic()
        self._first_mistake = self._first_mistake or now
        others = (self._expected or connected) - len(mistakes.keys() | gave_up.keys())
        seconds = now - self._first_mistake
        # The next unroll may take as long as the first one did.
        of_unroll = self._first_mistake - self._began
        if seconds < max(_OTHERS_SECONDS if others > 0 else _INVALID_SECONDS, of_unroll):
            return ""
        number, mistake = min(mistakes.items())
        return (
            f"no valid unroll came within {seconds:.0f} s of the first invalid one (actor "
            f"{number}: in one, {mistake}): correct the algorithm or the environment"
        )


def _actors(count: int) -> str:
    return f"{count} actor{'s' * (count != 1)}"
