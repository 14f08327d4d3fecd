"""The messages between actors and learners: their headers, and what a header's numbers mean."""

import hashlib
from typing import NamedTuple

PROTOCOL = 5


MAX_CONTENT = 3 << 20  # bytes of content per message; gRPC's own limit is 4 MiB


class ActorTimes(NamedTuple):
    """What an actor's thread that plays did since its message before, in seconds."""

    acting: float = 0.0  # in the network
    stepping: float = 0.0  # in the environments
    waiting: float = 0.0  # until the unrolls before were on their way: for the learner, that is
    playing: float = 0.0  # altogether, these three included


class UnrollHeader(NamedTuple):
    """What names a message, and what its actor did with its time; travels as int64 [12]."""

    nonce: int  # of the learner process that the sender said hello to
    run: int  # whose policy acted in these unrolls: all learners of a run hold the same
    actor: int
    incarnation: int  # of the actor's process
    sequence: int  # 0, 1, 2... within an incarnation
    dropped: int  # unrolls that went nowhere since the message before
    acting: int  # of `ActorTimes` in microseconds, as are the next three
    stepping: int
    waiting: int
    playing: int
    version: int  # the oldest policy version that acted in these unrolls
    pieces: int  # how many hold the content; 0: it is in the message itself; -1: it is left out

    @property
    def message(self) -> tuple[int, int, int]:
        """The one among all messages to a learner."""
        return self.actor, self.incarnation, self.sequence


def run_number(run_id: str) -> int:
    """A run's id as a header carries it."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:7], "big")


TRY_BITS = 20  # bits of an incarnation that count the connections of one life of an actor's process


class InferenceRequest(NamedTuple):
    """Who asks, and what the actor did with its time; travels as int64 [11]."""

    nonce: int  # of the learner process that the actor said hello to
    actor: int
    incarnation: int  # of the actor's connection: each begins with a reset of all environments
    group: int
    number: int  # 0, 1, 2...: steps of the group in this incarnation; 0 is the reset
    dropped: int  # unrolls that went nowhere since the last call
    acting: int  # of `transport.Times`, in microseconds, since the last call that said it
    stepping: int
    waiting: int
    playing: int
    environments: int  # E of this group

    @property
    def of(self) -> tuple[int, int, int]:
        """The group among all that a learner acts for."""
        return self.actor, self.incarnation, self.group
