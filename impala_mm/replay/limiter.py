"""The balance of new unrolls and updates: learner and actors wait for each other within bounds."""

import math
from typing import NamedTuple

_ROUNDING = 1e-9


class RateLimiter(NamedTuple):
    """The rule by which unrolls may be taken from the actors, and updates may be made.

    The first update needs `minimum` unrolls, and each further unroll allows `ratio` more updates.
    The actors may be ahead by as many updates as one unroll allows, or by one.
    """

    ratio: float  # updates for each new unroll
    minimum: int  # unrolls

    def allowed_updates(self, unrolls: int) -> int:
        """Return how many updates may have been made once this number of unrolls has arrived."""
        if unrolls < self.minimum:
            return 0
        return math.floor(self.ratio * (unrolls - self.minimum) + 1 + _ROUNDING)

    def allows_update(self, unrolls: int, updates: int) -> bool:
        """Return whether one more update may be made."""
        return updates < self.allowed_updates(unrolls)

    def allows_unroll(self, unrolls: int, updates: int) -> bool:
        """Return whether one more unroll may be taken; otherwise the learner is behind."""
        ahead = self.allowed_updates(unrolls) - updates
        return unrolls < self.minimum or ahead < max(1, math.floor(self.ratio))

    def room(self, unrolls: int, updates: int, most: int) -> int:
        """Return how many unrolls may be taken at once, up to `most`."""
        for n in range(most):
            if not self.allows_unroll(unrolls + n, updates):
                return n
        return most
