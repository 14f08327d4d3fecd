"""The seeds of environments."""

import itertools

import pytest

from impala_mm.environments import seeds

_ENVIRONMENTS = 256  # of a batch


@pytest.mark.parametrize("run_seed", [0, 1234])
def test_no_two_environments_of_a_run_share_a_seed(run_seed):
    """They are reset with numbers below 2**31."""
    firsts = [
        *(seeds.of_actor(run_seed, task) for task in range(500)),
        seeds.of_test(run_seed),
        *(
            seeds.of_recorded(run_seed, stream, learner)
            for learner in range(16)
            for stream in range(0, 20_000, _ENVIRONMENTS)
        ),
        seeds.of_measured(run_seed),
    ]
    ordered = sorted(first % 2**31 for first in firsts)
    assert all(b - a >= _ENVIRONMENTS for a, b in itertools.pairwise(ordered))
    assert ordered[0] + 2**31 - ordered[-1] >= _ENVIRONMENTS


def test_the_games_of_earlier_versions_are_played_again():
    assert seeds.of_actor(3, 2) == 3_000_009 + 20_014
    assert seeds.of_test(3) == 503_000_009
    assert seeds.of_recorded(3, 7) == 603_000_016
    assert seeds.of_recorded(3, 7, learner=2) == 603_000_016 + 2_000_006_000
    assert seeds.of_measured(3) == 703_000_009
