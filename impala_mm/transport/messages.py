"""The messages between actors and learners: their headers, and what the numbers in them mean.

Headers and replies travel as int64 tensors, a number for each field. A number that stands for
"nothing" on the wire has a name here; inside the code such a value is None.
"""

import enum
import hashlib
from typing import NamedTuple

PROTOCOL = 6  # version of all that follows
MAX_CONTENT = 3 << 20  # bytes of content in a message; gRPC's own limit is 4 MiB
TRY_BITS = 20  # bits of an incarnation that count the connections of one life of an actor's process
NO_POLICY = -1  # in place of a policy version: the learner has none yet, or none that is wanted
STAY = -1  # in place of a learner's rank: the actor stays with the learner that it feeds
CONTENT_OMITTED = -1  # in place of the number of chunks: the content was sent before
NO_NONCE = -1  # in place of a nonce, to a caller without the run's token


class Reply(enum.IntEnum):
    """What a learner answers to a message with unrolls, or to an inference request."""

    ACCEPTED = 0  # the unrolls are in the queue; the actions are in the answer
    RUNNING = 1  # an earlier call with the same number has not ended yet
    STALE = 2  # the learner had this message before
    DENIED = 3  # the caller has not the run's token
    DISPLACED = 4  # another process is this actor now
    LOST = 5  # what the message builds on is not here: its chunks, or its group of environments
    FOREIGN = 6  # it was meant for another learner's process


class ActorTimes(NamedTuple):
    """What an actor's playing thread did with its time since its message before, in seconds."""

    acting: float = 0.0  # in the network
    stepping: float = 0.0  # in the environments
    waiting: float = 0.0  # until the unrolls before were sent: for the learner, that is
    playing: float = 0.0  # altogether, these three included

    def in_microseconds(self) -> dict[str, int]:
        """Return the fields as headers carry them."""
        return {name: round(1e6 * seconds) for name, seconds in self._asdict().items()}


class UnrollHeader(NamedTuple):
    """What identifies a message with unrolls; travels as int64 [12]."""

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
    chunks: int  # how many hold the content; 0: it is in the message; or CONTENT_OMITTED

    @property
    def message_key(self) -> tuple[int, int, int]:
        """The message among all messages to a learner."""
        return self.actor, self.incarnation, self.sequence


class InferenceRequest(NamedTuple):
    """What identifies a step of a group of environments, for its next actions; travels as int64
    [11].
    """

    nonce: int  # of the learner process that the actor said hello to
    actor: int
    incarnation: int  # of the actor's connection: each begins with a reset of all environments
    group: int
    number: int  # 0, 1, 2...: steps of the group in this incarnation; 0 is the reset
    dropped: int  # unrolls that went nowhere since the last call
    acting: int  # of `ActorTimes`, in microseconds, since the last call that said it
    stepping: int
    waiting: int
    playing: int
    environments: int  # E of this group

    @property
    def group_key(self) -> tuple[int, int, int]:
        """The group among all that a learner acts for."""
        return self.actor, self.incarnation, self.group


class UnrollReply(NamedTuple):
    """What the learner tells the sender of unrolls; travels as int64 [4]."""

    reply: int  # a Reply
    queue_fill: int  # unrolls in the learner's queue
    version: int  # the newest policy version, or NO_POLICY
    next_learner: int  # the rank of the learner to feed from now on, or STAY


class ParametersRequest(NamedTuple):
    """Which part of which policy's parameters an actor reads next; travels as int64 [4]."""

    version: int  # or NO_POLICY: the newest
    offset: int  # bytes that the reader has
    reader: int  # a number that tells readers apart
    min_version: int  # nothing is sent while the newest is older


class ParametersReply(NamedTuple):
    """What comes with a part of the parameters; travels as int64 [3]."""

    version: int  # or NO_POLICY: there is none as requested
    total: int  # bytes of all parts
    nonce: int  # of the learner's process, or NO_NONCE


def run_number(run_id: str) -> int:
    """Return a run's id as a header carries it."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:7], "big")
