"""The numbers of environments: each once in a run, kept by actors that are restarted."""

import itertools

import numpy as np

from impala_mm.transport.connected_actors import EnvironmentNumbers


def _all(learners, joined):
    """Return the numbers of all actors, by (rank, actor): sizes of its groups."""
    return {
        key: learners[key[0]].join(key[1], sizes).numbers(0, sum(sizes)).tolist()
        for key, sizes in joined.items()
    }


def test_no_two_environments_of_a_run_have_the_same_number():
    """Actors of two learners, with other numbers of environments, in any order."""
    learners = [EnvironmentNumbers(rank, 2) for rank in range(2)]
    joined = {(1, 5): [4], (0, 0): [2, 1], (1, 1): [3, 3], (0, 7): [1]}
    numbers = _all(learners, joined)
    flat = [*itertools.chain(*numbers.values())]
    assert len(set(flat)) == len(flat) == 14
    learners[0].most = learners[1].most = max(each.used for each in learners)
    assert min(flat) == 0
    assert max(flat) < learners[0].count == learners[1].count == 20
    assert _all(learners, joined) == numbers, "an actor that joins again keeps its numbers"


def test_learners_with_equal_actors_leave_no_number_out():
    learners = [EnvironmentNumbers(rank, 2) for rank in range(2)]
    numbers = _all(learners, {(0, 0): [4], (1, 1): [4], (0, 2): [4], (1, 3): [4]})
    assert sorted(itertools.chain(*numbers.values())) == list(range(16))
    assert learners[1].count == 16


def test_the_groups_of_an_actor_divide_its_numbers():
    numbers = EnvironmentNumbers(0, 1)
    numbers.join(3, [2])
    numbers.join(0, [3, 1])
    assert numbers.of_group(0, 0, 3).tolist() == [2, 3, 4]
    assert numbers.of_group(0, 1, 1).tolist() == [5]
    assert numbers.of_group(9, 0, 2).tolist() == [0, 1], "an actor that did not tell its groups"
    assert numbers.in_run(0, np.array([3, 0])).tolist() == [5, 2]


def test_an_actor_that_comes_back_with_more_environments_gets_other_numbers():
    numbers = EnvironmentNumbers(0, 1)
    first = numbers.join(0, [2]), numbers.join(1, [2])
    again = numbers.join(0, [3])
    assert [each.first for each in (*first, again)] == [0, 2, 4]
    assert numbers.join(1, [1]).first == 2


def test_an_actor_that_moves_to_another_learner_keeps_its_numbers_and_needs_no_others():
    learners = [EnvironmentNumbers(rank, 2) for rank in range(2)]
    joined = {(actor % 2, actor): [3, 5] for actor in range(4)}
    numbers = _all(learners, joined)
    for actor in (1, 3):  # both of learner 1 move to learner 0
        first = numbers[1, actor][0]
        assert learners[0].has_room(actor, 8, first)
        moved = learners[0].join(actor, [3, 5], first)
        assert moved.numbers(0, 8).tolist() == numbers[1, actor]
        assert learners[0].sizes(actor) == [3, 5]
        assert learners[0].of_group(actor, 1, 5).tolist() == numbers[1, actor][3:]
        again = learners[0].join(actor, [3, 5])
        assert again.first == first, "also if it is restarted"
    assert [each.used for each in learners] == [16, 16]
    assert learners[0].count == 32
    assert learners[0].join(4, [1]).first == 32, "the next one"
    assert not learners[0].has_room(9, 8, 2**31 - 16)
