"""Which messages a learner has had, so that each unroll is trained on once.

A call whose caller gave up at its deadline may still run, and calls overtake each other: a message
is known by actor, incarnation (one life of the actor's process) and sequence number.
"""

import threading

from impala_mm.transport.messages import Reply


class DeliveryLedger:
    """The messages that were had: of each actor's last WINDOW numbers, each is accepted once."""

    WINDOW = 1000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actors: dict[int, _SequenceNumbers] = {}

    def join(self, actor: int, incarnation: int) -> None:
        """Make this incarnation the actor; what others send in its name is dropped from now on."""
        with self._lock:
            numbers = self._actors.get(actor)
            if numbers is None or numbers.incarnation != incarnation:
                self._actors[actor] = _SequenceNumbers(incarnation)

    def try_accept(self, actor: int, incarnation: int, sequence: int) -> Reply:
        """Return ACCEPTED if the message is new, and `complete` is due; RUNNING, STALE or DISPLACED
        if it is not.
        """
        with self._lock:
            numbers = self._actors.get(actor)
            if numbers is None or numbers.incarnation != incarnation:
                return Reply.DISPLACED
            return numbers.try_accept(sequence)

    def complete(self, actor: int, incarnation: int, sequence: int, done: bool = True) -> None:
        """Record that an accepted message is in the queue, or, not `done`, never will be."""
        with self._lock:
            numbers = self._actors.get(actor)
            if numbers and numbers.incarnation == incarnation:
                numbers.running.discard(sequence)
                if not done:
                    numbers.missing.add(sequence)


class _SequenceNumbers:
    """The numbers of one incarnation: all below `following` were had, but those in `missing`."""

    def __init__(self, incarnation: int):
        self.incarnation = incarnation
        self.following = 0
        self.missing: set[int] = set()
        self.running: set[int] = set()

    def try_accept(self, sequence: int) -> Reply:
        window = DeliveryLedger.WINDOW
        if sequence in self.running:
            return Reply.RUNNING
        if sequence >= self.following:
            self.missing.update(range(max(self.following, sequence - window), sequence))
            self.following = sequence + 1
            oldest = self.following - window
            self.missing = {number for number in self.missing if number >= oldest}
        elif sequence in self.missing:
            self.missing.remove(sequence)
        else:
            return Reply.STALE
        self.running.add(sequence)
        return Reply.ACCEPTED
