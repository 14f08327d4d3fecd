"""Which learner an actor feeds next: one with a full queue sends an actor to one that waits.

All learners hold the same weights, so any actor may feed any of them, and each step takes as long
as the learner that waits longest for its unrolls. The learners report their load to each other; the
server asks this file with each message, and its answer tells the actor.
"""

from collections.abc import Sequence
from typing import NamedTuple

SETTLE_SECONDS = 5.0  # after an actor came or left, in which a learner is left as it is
_STARVED = 0.1  # share of its time that a learner in need waits


class LearnerLoad(NamedTuple):
    """How busy a learner is."""

    wait_share: float  # of its time, waiting for unrolls
    queue_fill: float  # 0 to 1
    actors: int  # that fed it within the last seconds
    settled: bool  # nobody came or left within the last seconds


def choose_learner(rank: int, own: LearnerLoad, loads: Sequence[LearnerLoad]) -> int | None:
    """Return the learner that an actor which just fed learner `rank` feeds next; None: the same.

    `loads` are those of all learners, as last heard; `own` is of this moment. No actor is sent
    where it would only change which of the two learners waits.
    """
    if len(loads) < 2 or own.queue_fill < 1 or not own.settled:
        return None
    if loads[rank].wait_share > _STARVED / 2:
        return None
    neediest = max(range(len(loads)), key=lambda other: loads[other].wait_share)
    its = loads[neediest]
    if neediest == rank or its.wait_share < _STARVED or its.queue_fill > 0.5 or not its.settled:
        return None
    return neediest if not its.actors or own.actors > its.actors + 1 else None
