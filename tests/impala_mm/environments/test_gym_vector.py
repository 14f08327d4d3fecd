"""The step convention, statistics and faults of environments stepped in one process."""

import numpy as np
import pytest
from counting import Counting, level
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.environments import types
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import Episode

COUNTING = "counting:Counting-v0"
NO, YES = False, True
TABLE = [  # the action asked for, then what the entry holds, written by hand
    # action, reward, terminated, truncated, observation, first, mask
    (None, 0, NO, NO, 0, YES, NO),
    (1, 1, NO, NO, 1, NO, YES),
    (2, 2, NO, NO, 2, NO, YES),
    (1, 1, NO, YES, 3, NO, YES),  # cut after 3: its last observation
    (2, 0, NO, NO, 4, YES, NO),  # the action is ignored
    (2, 2, NO, NO, 5, NO, YES),
    (3, 3, NO, NO, 6, NO, YES),
    (2, 2, YES, NO, 7, NO, YES),
    (1, 0, NO, NO, 8, YES, NO),
    (3, 3, YES, NO, 9, NO, YES),  # an episode of a single step
    (2, 0, NO, NO, 10, YES, NO),
    (1, 1, NO, NO, 11, NO, YES),
]


def _play(envs, actions):
    """Return copies of the steps: the reset, then one for each row of actions."""
    steps = [envs.reset()]
    entries = [[array.copy() for array in steps[0][:-1]]]
    for row in actions:
        entries.append([array.copy() for array in envs.step(np.asarray(row))[:-1]])
    return types.Step(*(np.stack(arrays) for arrays in zip(*entries, strict=True)))


def test_the_step_convention_as_written_by_hand():
    envs = make_environments(COUNTING, 1, seed=0)
    played = _play(envs, [[row[0]] for row in TABLE[1:]])
    for t, (_, reward, terminated, truncated, observation, first, mask) in enumerate(TABLE):
        seen = [array[t, 0] for array in played[:-1]]
        assert seen == [reward, terminated, truncated, [observation], first, NO], f"row {t}"
        assert mask == (not played.first[t, 0])
    assert played.observation.dtype == played.reward.dtype == np.float32
    assert envs.faults == []


def test_each_episode_is_reported_as_training_episode_and_as_game():
    envs = make_environments(COUNTING, 2, seed=0)
    _play(envs, [[row[0]] * 2 for row in TABLE[1:]])
    finished = envs.episodes()
    # The second environment begins with the terminated episode of 3 steps.
    due = {
        0: [(1 + 2 + 1, 3), (2 + 3 + 2, 3), (3, 1)],
        1: [(1 + 2 + 1, 3), (2, 1), (2 + 1 + 3, 3)],
    }
    for i in (0, 1):
        for whole_game in (False, True):
            mine = [e for e in finished if e.environment == i and e.whole_game == whole_game]
            assert [(e.episode_return, e.length) for e in mine] == due[i]
    assert len(finished) == 12
    assert envs.episodes() == []


def test_a_second_reset_drops_the_running_episode():
    envs = make_environments(COUNTING, 1, seed=0)
    envs.reset()
    envs.step(np.array([1]))
    again = envs.reset()
    assert again.first.all()
    assert again.observation[0] == 2
    for _ in range(3):
        envs.step(np.array([1]))
    assert envs.episodes() == [Episode(0, whole, 3.0, 3) for whole in (False, True)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 5), st.sampled_from(["terminated", "truncated", "both"])),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 25),
)
def test_whatever_the_ends_entries_agree_with_each_other(kinds, steps):
    """No environment is stepped after its end, where Counting raises; each step counts once."""

    class Both(Counting):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            if not self._left and self._kind == "both":
                terminated = truncated = True
            return observation, reward, terminated, truncated, info

    made = iter([[(1, "truncated")], *kinds])  # the first is only looked at
    envs = make_environments(level(lambda: Both(next(made))), len(kinds), seed=0)
    actions = np.random.default_rng(steps).integers(0, 4, (steps, len(kinds)))
    played = _play(envs, actions)
    ended = played.terminated | played.truncated
    assert envs.faults == []
    assert not played.fault.any()
    assert played.first[0].all()
    assert (played.first[1:] == ended[:-1]).all()
    assert not (played.first & ended).any()
    assert (played.reward[1:] == np.where(played.first[1:], 0, actions)).all()
    games = [episode for episode in envs.episodes() if episode.whole_game]
    assert len(games) == ended.sum()
    for i in range(len(kinds)):
        since = np.flatnonzero(ended[:, i]).max(initial=0) + 1
        mine = [game for game in games if game.environment == i]
        assert sum(game.length for game in mine) == (~played.first[:since, i]).sum()
        assert sum(game.episode_return for game in mine) == played.reward[:since, i].sum()


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda seen, *rest: _raise(ValueError("boom\nand more")), "ValueError: boom and more"),
        (lambda seen, *rest: _raise(SystemExit(3)), "SystemExit: 3"),
        (lambda seen, reward, *rest: (seen, None, *rest), "ValueError: reward nan"),
        (lambda seen, reward, end, *rest: (seen, -np.inf, True, *rest), "ValueError: reward -inf"),
        (lambda seen, *rest: (np.zeros(3), *rest), "observation of shape [3]"),
        (lambda seen, *rest: (seen * np.inf, *rest), "observation with NaN or infinity"),
        (lambda *rest: rest[:3], "step must return (observation, reward, terminated, truncated"),
    ],
)
def test_a_fault_costs_its_environment_and_no_other(wrong, line):
    class Faulty(Counting):
        def step(self, action):
            result = super().step(action)
            return wrong(*result) if action == 3 else result

    name = level(lambda: Faulty([(4, "terminated")]))
    envs = make_environments(name, 4, seed=0)
    envs.reset()
    envs.step(np.array([1, 1, 1, 1]))
    step = envs.step(np.array([1, 1, 1, 3]))
    assert step.fault.tolist() == step.first.tolist() == [NO, NO, NO, YES]
    assert step.reward.tolist() == [1, 1, 1, 0]
    assert step.observation[3] == 0
    assert not step.truncated.any()
    assert not step.terminated[3]
    (fault,) = envs.faults
    assert fault.text.startswith(f"environment 3 of {name}: ")
    assert line in fault.text
    assert fault.environment == 3

    step = envs.step(np.array([2, 2, 2, 2]))
    assert step.first.tolist() == [NO, NO, NO, YES], "another one is reset in its place"
    assert not step.fault.any()
    assert (step.reward[3], step.observation[3, 0]) == (0, 0)
    step = envs.step(np.array([1, 1, 1, 2]))
    assert {(e.environment, e.episode_return, e.length) for e in envs.episodes()} == {
        (i, 5.0, 4) for i in range(3)
    }
    assert (step.reward[3], step.observation[3, 0]) == (2, 1)
    for _ in range(3):
        envs.step(np.array([1, 1, 1, 2]))
    assert [e[2:4] for e in envs.episodes() if e.environment == 3] == [(8.0, 4)] * 2


def test_an_environment_that_cannot_reset_is_broken_and_opened_again_ever_more_rarely():
    willing = [True]

    class Unwilling(Counting):
        closed = 0

        def reset(self, **given):
            if not willing[0]:
                raise OSError("no screen")
            return super().reset(**given)

        def close(self):
            Unwilling.closed += 1
            if not willing[0]:
                raise RuntimeError("cannot even close")

    envs = make_environments(level(Unwilling), 2, seed=0)
    willing[0], Unwilling.closed = False, 0
    step = envs.reset()
    assert step.fault.all()
    assert step.first.all()
    assert [fault.text.split(": ", 1)[1] for fault in envs.faults] == ["OSError: no screen"] * 2
    tried = []
    for number in range(60):
        before = Unwilling.closed
        assert envs.step(np.array([0, 0])).fault.all()
        if Unwilling.closed > before:
            assert Unwilling.closed == before + 2
            tried.append(number)
    assert tried == [0, 2, 6, 14, 30], "the others would wait for it"
    assert len(envs.faults) == 2 + 2 * len(tried)
    willing[0] = True
    waited = 60
    while envs.step(np.array([0, 0])).fault.all():
        waited += 1
    assert waited == 62
    assert envs.step(np.array([1, 1])).reward.tolist() == [1, 1]
    envs.close()


def test_an_environment_that_has_lasted_is_opened_again_in_the_next_step():
    broken, made = [NO], []

    class Delicate(Counting):
        def __init__(self):
            super().__init__([(100, "terminated")])
            made.append(self)

        def step(self, action):
            return super().step(action) if not broken[0] else _raise(OSError("gone"))

    envs = make_environments(level(Delicate), 1, seed=0)
    envs.reset()
    for length in (5, 2, 7):
        for _ in range(length):
            assert not envs.step(np.array([0])).fault.any()
        broken[0], before = YES, len(made)
        assert envs.step(np.array([0])).fault.all()
        broken[0] = NO
        step = envs.step(np.array([0]))
        assert (len(made), step.first[0], step.fault[0]) == (before + 1, YES, NO)
    assert envs.reset().first.all()
    envs.close()


def test_what_was_made_is_closed_when_a_copy_cannot_be_made():
    closed, made = [], []

    class Scarce(Counting):
        def __init__(self):
            super().__init__()
            if len(made) == 3:
                raise MemoryError
            made.append(self)

        def close(self):
            closed.append(self)

    with pytest.raises(MemoryError):
        make_environments(level(Scarce), 4, seed=0)
    assert closed == made


def test_equal_seeds_play_equal_games_and_every_copy_its_own():
    def observed(seed):
        envs = make_environments("CartPole-v1", 3, seed)
        actions = np.random.default_rng(1).integers(0, 2, (60, 3))
        return _play(envs, actions).observation

    first = observed(5)
    assert (first == observed(5)).all()
    assert not (first == observed(9)).all()
    assert not (first[:, 0] == first[:, 1]).all()
    assert (first[0, 1] == observed(6)[0, 0]).all(), "number i is seeded with seed + i"


def test_only_the_first_reset_is_seeded_and_one_in_place_of_another_has_a_new_seed():
    seeds = []

    class Seeded(Counting):
        def __init__(self):
            super().__init__([(100, "terminated")])

        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    envs = make_environments(level(Seeded), 2, seed=2**33 - 1)
    seeds.clear()  # one environment was reset to see whether its info has a mask
    envs.reset()
    envs.reset()
    assert seeds == [2**31 - 1, 0, None, None], "no simulator takes a larger one"
    found = []
    for _ in range(2):
        envs.step(np.array([1, 1]))
        envs.step(np.array([1, 1]))
        envs._steps[0] = None  # it cannot be called
        assert envs.step(np.array([1, 1])).fault.tolist() == [YES, NO]
        del seeds[:]
        assert not envs.step(np.array([1, 1])).fault.any()
        found += seeds
    assert None not in found
    assert len({2**31 - 1, 0, *found}) == 4


def test_repeated_actions_sum_rewards_up_to_the_episodes_end():
    envs = make_environments(COUNTING, 1, seed=0, num_action_repeats=2)
    assert envs.spec.action_repeats == 2
    played = _play(envs, [[1], [1], [1], [2], [2]])
    assert played.reward[:, 0].tolist() == [0, 2, 1, 0, 4, 2]
    assert played.observation[:, 0, 0].tolist() == [0, 2, 3, 4, 6, 7]
    assert played.truncated[:, 0].tolist() == [NO, NO, YES, NO, NO, NO]
    assert [e[2:4] for e in envs.episodes()] == [(3.0, 2)] * 2 + [(6.0, 2)] * 2, "length in steps"
