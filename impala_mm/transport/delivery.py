"""Which messages were had. `server` asks it, so that each unroll is trained on once.

A call whose caller gave up at its deadline may still run, and calls overtake each other: what was
had is known by actor, incarnation (one life of the actor's process) and sequence number.
"""

import threading

# Answers to `enqueue`.
# (in the queue; an earlier call of this message still waits; had before; no token; another process
# is this actor now; its pieces are not here; meant for another learner's process)
ACCEPTED, RUNNING, STALE, DENIED, DISPLACED, LOST, FOREIGN = range(7)


class DeliveryLedger:
    """Which messages were had: of each actor's last WINDOW sequence numbers, each passes once."""

    WINDOW = 1000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actors: dict[int, _SequenceNumbers] = {}

    def join(self, actor: int, incarnation: int) -> None:
        """From now on this incarnation is the actor; what others send in its name is dropped."""
        with self._lock:
            numbers = self._actors.get(actor)
            if numbers is None or numbers.incarnation != incarnation:
                self._actors[actor] = _SequenceNumbers(incarnation)

    def begin(self, actor: int, incarnation: int, sequence: int) -> int:
        """ACCEPTED: go on, and call `end` when done. Else RUNNING, STALE or DISPLACED."""
        with self._lock:
            numbers = self._actors.get(actor)
            if numbers is None or numbers.incarnation != incarnation:
                return DISPLACED
            return numbers.begin(sequence)

    def end(self, actor: int, incarnation: int, sequence: int, done: bool = True) -> None:
        """The message that `begin` accepted is in the queue, or (not done) never will be."""
        with self._lock:
            numbers = self._actors.get(actor)
            if numbers and numbers.incarnation == incarnation:
                numbers.running.discard(sequence)
                if not done:
                    numbers.missing.add(sequence)


class _SequenceNumbers:
    """The sequence numbers of one incarnation: all below `following` were had, but `missing`."""

    def __init__(self, incarnation: int):
        self.incarnation = incarnation
        self.following = 0
        self.missing: set[int] = set()
        self.running: set[int] = set()

    def begin(self, sequence: int) -> int:
        if sequence in self.running:
            return RUNNING
        if sequence >= self.following:
            self.missing.update(
                range(max(self.following, sequence - DeliveryLedger.WINDOW), sequence)
            )
            self.following = sequence + 1
            oldest = self.following - DeliveryLedger.WINDOW
            self.missing = {number for number in self.missing if number >= oldest}
        elif sequence in self.missing:
            self.missing.remove(sequence)
        else:
            return STALE
        self.running.add(sequence)
        return ACCEPTED
