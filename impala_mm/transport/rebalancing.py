"""The choice of the learner that an actor feeds next: full queues give actors to starved ones.

All learners hold the same weights, so any actor may feed any of them, and each update takes as long
as the learner that waits longest for its unrolls. The learners report their loads to each other.
The server calls `choose_learner` for each message with unrolls, and its reply names the learner.
"""

from collections.abc import Sequence
from typing import NamedTuple

SETTLE_SECONDS = 5.0  # seconds for which no actor moves after one joined or left a learner
_STARVED = 0.1  # a learner that waits for more than this share of its time needs actors


class LearnerLoad(NamedTuple):
    """The load of a learner."""

    wait_share: float  # share of its time that it waits for unrolls
    queue_fill: float  # 0 to 1
    actors: int  # actors that sent something within the last seconds, or play for a round
    settled: bool  # no actor joined or left within the last seconds


def choose_learner_without_actors(
    rank: int, own: LearnerLoad, loads: Sequence[LearnerLoad]
) -> int | None:
    """Return the learner that an actor of learner `rank` must feed next, in a run with rounds.

    Learners whose actors play in rounds wait for unrolls by design, so only a learner that has no
    actor at all gets one.
    """
    if not own.settled or own.actors < 2:
        return None
    empty = [other for other, load in enumerate(loads) if not load.actors and load.settled]
    return next((other for other in empty if other != rank), None)


def choose_learner(rank: int, own: LearnerLoad, loads: Sequence[LearnerLoad]) -> int | None:
    """Return the learner that an actor of learner `rank` must feed next; None: the same one.

    `loads` has the last reported load of each learner, `own` is the current load of this one. No
    actor moves if the learner that it leaves would then wait instead.
    """
    if len(loads) < 2 or own.queue_fill < 1 or not own.settled:
        return None
    if loads[rank].wait_share > _STARVED / 2:
        return None
    neediest = max(range(len(loads)), key=lambda other: loads[other].wait_share)
    target = loads[neediest]
    if (
        neediest == rank
        or target.wait_share < _STARVED
        or target.queue_fill > 0.5
        or not target.settled
    ):
        return None
    return neediest if not target.actors or own.actors > target.actors + 1 else None
