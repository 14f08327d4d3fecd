"""The choice of the learner that an actor feeds next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impala_mm.transport.connected_actors import (
    SETTLE_SECONDS,
    ConnectedActors,
    LearnerLoad,
    choose_learner,
    choose_learner_without_actors,
)

FULL = LearnerLoad(wait_share=0.0, queue_fill=1.0, actors=3, settled=True)
STARVES = LearnerLoad(wait_share=0.9, queue_fill=0.0, actors=1, settled=True)


def _place(mine, *others):
    return choose_learner(0, mine, [mine, *others])


def test_a_full_learner_sends_an_actor_to_the_one_that_waits_longest():
    half = STARVES._replace(wait_share=0.5)
    assert _place(FULL, half, STARVES, half) == 2
    assert _place(FULL._replace(actors=1), STARVES._replace(actors=0)) == 1, "even the last actor"
    assert _place(FULL) is None


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (FULL._replace(queue_fill=0.9), STARVES),
        (FULL._replace(wait_share=0.2), STARVES),
        (FULL._replace(settled=False), STARVES),
        (FULL, STARVES._replace(settled=False)),
        (FULL, STARVES._replace(wait_share=0.05)),
        (FULL, STARVES._replace(queue_fill=0.8)),
        (FULL._replace(actors=2), STARVES),
    ],
    ids=["room", "starves, too", "sent one", "got one", "no need", "unrolls there", "one more"],
)
def test_else_it_stays(mine, other):
    assert _place(mine, other) is None


share = st.floats(0, 1)
loads = st.builds(LearnerLoad, share, share, st.integers(0, 9), st.booleans())


@given(st.lists(loads, min_size=1, max_size=6), st.data())
def test_nobody_is_sent_to_where_they_are_or_to_who_waits_less(everybody, data):
    rank = data.draw(st.integers(0, len(everybody) - 1))
    place = choose_learner(rank, everybody[rank], everybody)
    if place is not None:
        assert place != rank
        assert everybody[place].wait_share == max(load.wait_share for load in everybody)
        assert everybody[place].wait_share > everybody[rank].wait_share


def test_an_actor_moves_by_the_number_of_active_ones():
    actors = ConnectedActors()
    for actor in range(3):
        actors.join(actor, {}, movable=True)
    actors.loads = [FULL, STARVES]
    assert actors.redirect(1, 1.0) is None, "actors have just joined"
    actors.changed_at -= 2 * SETTLE_SECONDS
    assert actors.redirect(1, 0.5) is None, "there is room"
    for actor in (0, 2):
        actors.heard[actor] -= 2 * SETTLE_SECONDS  # they are silent
    assert actors.redirect(1, 1.0) is None, "it would leave the learner without an active one"
    assert actors.redirect(1, 1.0, playing=(0, 2)) == 1
    assert actors.heard.keys() == {0, 2}


@given(st.lists(loads, min_size=1, max_size=6), st.data())
def test_more_actors_of_a_learner_never_keep_one_there(everybody, data):
    rank = data.draw(st.integers(0, len(everybody) - 1))
    own = data.draw(loads)
    more = own._replace(actors=own.actors + data.draw(st.integers(0, 9)))
    for choose in (choose_learner, choose_learner_without_actors):
        place = choose(rank, own, everybody)
        assert place is None or choose(rank, more, everybody) == place
