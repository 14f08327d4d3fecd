"""The messages between actors and learners: their headers and replies.

Headers and replies are sent as int64 tensors with one number per field. Numbers that stand for
"nothing" in these tensors are named constants here; elsewhere in the code such a value is None.
"""

import enum
import hashlib
import secrets
from typing import NamedTuple, Self

import numpy as np

PROTOCOL = 16  # the version of everything below
MAX_CONTENT = 3 << 20  # bytes of content in a message; gRPC's own limit is 4 MiB
MAX_ACTORS = 100_000  # different numbers of actors that one learner remembers
MAX_ENVIRONMENTS = 100_000  # of one actor; the limit of the CSV's column, too
CONNECTION_BITS = 20  # low bits of an incarnation: they count the connections of one actor process
UNROLLS = -1  # the stream of an actor's unrolls; groups of environments are streams 0, 1, 2...
NO_POLICY = -1  # in place of a policy version: the newest, or the learner has none
STAY = -1  # in place of a learner's rank: the actor continues to feed the same learner
CONTENT_OMITTED = -1  # in place of the number of chunks: an earlier call carried the content
NO_NONCE = -1  # in place of a nonce, to a caller without the run's token
NO_TOKEN = (
    "this host's token differs from the learner's: copy its token file to this host "
    "(scp LEARNER:.config/impala_mm/token ~/.config/impala_mm/token), or give its path with "
    "--token_file"
)
RUN_ENDED = "the run has ended"  # error of all calls once a learner has ended its training


class Reply(enum.IntEnum):
    """The learner's verdict on a message."""

    ACCEPTED = 0  # the message is delivered: its unrolls are in the queue, or its actions follow
    RUNNING = 1  # an earlier call with this message has not ended yet
    STALE = 2  # the message was delivered before; the last one of a stream gets its answer again
    DENIED = 3  # the caller does not have the run's token
    DISPLACED = 4  # another process, or a later connection, is this actor now
    LOST = 5  # the learner lacks an earlier message of the stream: the actor must start it over
    FOREIGN = 6  # the message was meant for another learner process or another run
    INCOMPLETE = 7  # some of the content is missing: send the message again with its content
    INVALID = 8  # a number of the message cannot be; the learner's log says which


class ActorTimes(NamedTuple):
    """The time of an actor's playing thread since its previous report, in seconds."""

    acting: float = 0.0  # in the network, or waiting for a learner that infers
    stepping: float = 0.0  # in the environments
    waiting: float = 0.0  # until the previous unrolls were sent: waiting for the learner
    policy_wait: float = 0.0  # for the next policy version, in an algorithm with rounds
    playing: float = 0.0  # total, which includes these four

    def in_microseconds(self) -> dict[str, int]:
        """Return the fields in the format of a header."""
        return {name: round(1e6 * seconds) for name, seconds in self._asdict().items()}


class MessageHeader(NamedTuple):
    """The identity of a message, and what the learner records about it; int64 [18].

    An actor numbers the messages of each of its streams. It has one stream for its unrolls or, with
    --inference=learner, one for each group of environments: its messages carry steps, and their
    answers actions.
    """

    nonce: int  # random number of the learner process that answered the actor's hello
    run: int  # number of the run whose policy acted; the same for all learners of a run
    actor: int
    incarnation: int  # number of the actor's process and connection; see `new_incarnation`
    stream: int = UNROLLS  # or a group's number
    number: int = 0  # 0, 1, 2... in the stream; a group's number 0 carries its reset
    dropped: int = 0  # unrolls that reached no learner, since the previous report
    acting: int = 0  # the fields of `ActorTimes` in microseconds; all 0: no report of times
    stepping: int = 0
    waiting: int = 0
    policy_wait: int = 0
    playing: int = 0
    chunks: int = 0  # chunks sent ahead; 0: the content is in the message; or CONTENT_OMITTED
    version: int = 0  # for unrolls: the oldest policy version that acted in them
    # The environments of a group; or those for which the actor claims columns of a round, with a
    # message of unrolls those of the next one.
    environments: int = 0
    faults: int = 0  # faults of environments, since the previous report
    millicores: int = 0  # thousandths of a core that the actor's processes use
    memory: int = 0  # MiB that they use

    @classmethod
    def decode(cls, numbers: np.ndarray) -> Self:
        """Return a header from the tensor that carried it."""
        return cls(*numbers.tolist())

    @property
    def function(self) -> str:
        """The endpoint that takes the message."""
        return "enqueue" if self.stream == UNROLLS else "infer"

    @property
    def stream_key(self) -> tuple[int, int, int]:
        """The stream among all streams that reach a learner."""
        return self.actor, self.incarnation, self.stream

    @property
    def message_key(self) -> tuple[int, int, int, int]:
        """The message among all messages that reach a learner."""
        return self.actor, self.incarnation, self.stream, self.number

    @property
    def times(self) -> ActorTimes:
        """The times that the actor reports, in seconds."""
        return ActorTimes(*(getattr(self, name) / 1e6 for name in ActorTimes._fields))


class MessageReply(NamedTuple):
    """The learner's reply to a message; int64 [5]."""

    reply: int  # a Reply
    # The newest policy version; with inference at the learner: the one in use.
    version: int = NO_POLICY
    next_learner: int = STAY  # rank of the learner that the actor must feed next, or STAY
    environments: int = 0  # `NumberRange.bound`, or 0: as before
    granted: int = NO_POLICY  # the version that plays the claimed columns, or NO_POLICY: not yet


class ParametersRequest(NamedTuple):
    """A request for a part of one version of the parameters; int64 [3]."""

    version: int  # or NO_POLICY for the newest
    offset: int  # bytes that the reader has received
    reader: int  # a random number that tells readers apart


class ParametersReply(NamedTuple):
    """The numbers that accompany a part of the parameters; int64 [3]."""

    version: int  # or NO_POLICY if the learner does not have the requested one
    total: int  # bytes of all parts
    nonce: int  # of the learner process, or NO_NONCE


class NumberRange(NamedTuple):
    """The numbers of an actor's environments: first, first + stride, first + 2 x stride..."""

    first: int
    stride: int
    # More than the largest number in the run: the number of environments, if all learners have
    # equally many.
    bound: int

    def numbers(self, begin: int, size: int) -> np.ndarray:
        """Return the numbers of `size` environments of the actor from its number `begin`, int32."""
        return (self.first + self.stride * np.arange(begin, begin + size)).astype(np.int32)


def run_number(run_id: str) -> int:
    """Return the number that stands for a run's id in headers."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:7], "big")


def new_incarnation() -> int:
    """Return a random incarnation for an actor's process and its first connection.

    Adding 1 gives the next connection of the same process, up to `CONNECTION_BITS` of them.
    """
    return secrets.randbits(62 - CONNECTION_BITS) << CONNECTION_BITS
