"""The step convention, statistics and faults of environments stepped in one process."""

import sys

import gymnasium
import numpy as np
import pytest
from counting import KINDS, Counting, level
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


def test_three_environments_end_and_reset_each_for_itself():
    courses = [  # R: reset, .: a step, u: truncated, x: terminated
        "R..uR..xRxR.",
        "R..xRxR..uR.",
        "RxR..uR..xRx",
    ]
    actions = np.random.default_rng(0).integers(0, 4, (11, 3))
    played = _play(make_environments(COUNTING, 3, seed=0), actions)
    for i, course in enumerate(courses):
        assert played.first[:, i].tolist() == [mark == "R" for mark in course]
        assert played.truncated[:, i].tolist() == [mark == "u" for mark in course]
        assert played.terminated[:, i].tolist() == [mark == "x" for mark in course]
        assert played.observation[:, i, 0].tolist() == list(range(12))
        asked = [0, *actions[:, i].tolist()]
        due = [0 if mark == "R" else action for mark, action in zip(course, asked, strict=True)]
        assert played.reward[:, i].tolist() == due


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
    played = _play(envs, np.ones((steps, len(kinds)), np.int64))
    ended = played.terminated | played.truncated
    assert envs.faults == []
    assert not played.fault.any()
    assert played.first[0].all()
    assert (played.first[1:] == ended[:-1]).all()
    assert not (played.first & ended).any()
    assert (played.reward == ~played.first).all()
    games = [episode for episode in envs.episodes() if episode.whole_game]
    assert len(games) == ended.sum()
    assert all(game.length == game.episode_return for game in games)
    for i in range(len(kinds)):
        last = np.flatnonzero(ended[:, i]).max(initial=0)
        lengths = sum(game.length for game in games if game.environment == i)
        assert lengths == (~played.first[: last + 1, i]).sum()


class Faulty(Counting):
    """An environment that fails when the action is 3."""

    fault = None

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if action == 3:
            if self.fault == "raises":
                raise ValueError("boom\nand more")
            if self.fault == "exits":
                sys.exit(3)
            if self.fault == "reward":
                reward = float("nan")
            if self.fault == "no reward":
                reward = None
            if self.fault == "shape":
                observation = np.zeros(3, np.float32)
            if self.fault == "infinite":
                observation = np.array([np.inf])
            if self.fault == "three":
                return observation, reward, terminated
            if self.fault == "end":
                reward, terminated = float("-inf"), True
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("raises", "ValueError: boom and more"),
        ("exits", "SystemExit: 3"),
        ("reward", "ValueError: reward nan"),
        ("no reward", "ValueError: reward nan"),
        ("shape", "ValueError: observation of shape [3], and its space has the shape [1]"),
        ("infinite", "ValueError: observation with NaN or infinity"),
        (
            "three",
            "step must return (observation, reward, terminated, truncated, info): "
            "ValueError: not enough values to unpack (expected 5, got 3)",
        ),
        ("end", "ValueError: reward -inf"),
    ],
)
def test_a_fault_costs_its_environment_and_no_other(monkeypatch, fault, line):
    monkeypatch.setattr(Faulty, "fault", fault)
    name = level(lambda: Faulty([(4, "terminated")]))
    envs = make_environments(name, 4, seed=0)
    envs.reset()
    envs.step(np.array([1, 1, 1, 1]))
    for actions in ([1, 1, 1, 3], [2, 2, 2, 2], [1, 1, 1, 1]):
        step = envs.step(np.array(actions))
        assert step.fault.tolist() == step.first.tolist() == [NO, NO, NO, YES]
        assert step.reward.tolist() == [*actions[:3], 0]
        assert step.observation[3] == 0
        assert not step.truncated.any()
        assert not step.terminated[3]
    assert [fault.text for fault in envs.faults] == [f"environment 3 of {name}: {line}"]
    assert envs.faults[0].environment == 3
    assert {(e.environment, e.episode_return, e.length) for e in envs.episodes()} == {
        (i, 5.0, 4) for i in range(3)
    }

    row = envs.rebuild(3)
    assert [array.shape[0] for array in row[:-1]] == [1] * 6
    assert (row.first[0], row.fault[0], row.observation[0, 0]) == (YES, NO, 0)
    step = envs.step(np.array([1, 1, 1, 2]))
    assert step.first.tolist() == [YES, YES, YES, NO]
    assert not step.fault.any()
    assert (step.reward[3], step.observation[3, 0]) == (2, 1)
    for _ in range(3):
        envs.step(np.array([1, 1, 1, 2]))
    assert [e[2:] for e in envs.episodes() if e.environment == 3] == [(8.0, 4)] * 2


def test_an_environment_that_cannot_reset_is_broken_until_a_rebuild_succeeds():
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
    with pytest.raises(OSError, match="no screen"):
        envs.rebuild(1)
    assert Unwilling.closed == 1
    assert envs.step(np.array([0, 0])).fault.all()
    willing[0] = True
    assert not envs.rebuild(1).fault.any()
    assert envs.step(np.array([0, 0])).fault.tolist() == [YES, NO]
    assert envs.reset().fault.tolist() == [YES, NO], "a reset mends nothing"
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


def test_interrupts_are_no_faults():
    class Interrupted(Counting):
        def step(self, action):
            raise KeyboardInterrupt

    envs = make_environments(level(Interrupted), 1, seed=0)
    envs.reset()
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.array([0]))


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


def test_only_the_first_reset_is_seeded_and_a_rebuilt_copy_has_a_new_seed():
    seeds = []

    class Seeded(Counting):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    envs = make_environments(level(Seeded), 2, seed=7)
    seeds.clear()  # one environment was reset to see whether its info has a mask
    envs.reset()
    envs.reset()
    assert seeds == [7, 8, None, None]
    envs.rebuild(0)
    envs.rebuild(0)
    assert None not in seeds[4:]
    assert len({7, 8, *seeds[4:]}) == 4


def test_a_large_seed_is_one_that_simulators_take():
    seeds = []

    class Seeded(Counting):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    gymnasium.register("Seeded-v0", entry_point=Seeded)
    make_environments("Seeded-v0", 2, 2**33 - 1).reset()
    assert seeds[-2:] == [2**31 - 1, 0]


def test_repeated_actions_sum_rewards_up_to_the_episodes_end():
    envs = make_environments(COUNTING, 1, seed=0, num_action_repeats=2)
    assert envs.spec.action_repeats == 2
    played = _play(envs, [[1], [1], [1], [2], [2]])
    assert played.reward[:, 0].tolist() == [0, 2, 1, 0, 4, 2]
    assert played.observation[:, 0, 0].tolist() == [0, 2, 3, 4, 6, 7]
    assert played.truncated[:, 0].tolist() == [NO, NO, YES, NO, NO, NO]
    assert [e[2:] for e in envs.episodes()] == [(3.0, 2)] * 2 + [(6.0, 2)] * 2, "length in steps"


def test_steps_share_their_arrays_and_a_rebuilt_row_does_not():
    envs = make_environments(COUNTING, 2, seed=0)
    before = envs.reset()
    kept = before.observation.copy()
    row = envs.rebuild(0)
    assert (before.observation == kept).all()
    step = envs.step(np.array([0, 0]))
    assert step.observation is before.observation
    assert row.first.all()


def test_actions_are_numbered_from_zero():
    class Shifted(Counting):
        action_space = gymnasium.spaces.Discrete(3, start=-1)

    envs = make_environments(level(Shifted), 1, seed=0)
    assert envs.spec.num_actions == 3
    assert _play(envs, [[0], [2]]).reward[:, 0].tolist() == [0, -1, 1]


def test_the_counting_environment_is_as_its_table_says():
    assert [length for length, _ in KINDS] == [3, 3, 1]
