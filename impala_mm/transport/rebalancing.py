"""Where an actor is needed most: a learner whose queue is full sends one to the learner that waits.

All learners hold the same weights, so any actor may feed any of them, and each step takes as long
as the learner that waits longest for its unrolls. The learners tell each other how they are
(`pulse`); `server` asks this file with each unroll, and its answer tells the actor.
"""

from collections.abc import Sequence
from typing import NamedTuple

SETTLE_SECONDS = 5.0  # seconds after an actor came or left in which a learner is left as it is
_STARVED = 0.1  # share of its time that a learner in need waits


class LearnerLoad(NamedTuple):
    """How a learner is."""

    starved: float  # share of its time that it waits for unrolls
    fill: float  # of its queue
    actors: int  # that fed it within the last seconds
    settled: bool  # nobody came or left within the last seconds


def choose_learner(rank: int, mine: LearnerLoad, needs: Sequence[LearnerLoad]) -> int:
    """The learner that an actor which just fed learner `rank` is to feed next; -1: the same.

    `needs` are those of all learners, as last heard; `mine` is as of now. Nobody is sent where they
    would only change which of the two learners waits.
    """
    if len(needs) < 2 or mine.fill < 1 or not mine.settled or needs[rank].starved > _STARVED / 2:
        return -1
    most = max(range(len(needs)), key=lambda other: needs[other].starved)
    theirs = needs[most]
    if most == rank or theirs.starved < _STARVED or theirs.fill > 0.5 or not theirs.settled:
        return -1
    return most if not theirs.actors or mine.actors > theirs.actors + 1 else -1
