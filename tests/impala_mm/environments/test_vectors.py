"""Vectors step as single environments do, in each mode of autoreset; broken ones are said so."""

import os
import re
import signal

import cloudpickle
import gymnasium
import numpy as np
import pytest
from counting import Counting, level
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from vectored import GAMES, Alike, Arithmetic, make_sync

from impala_mm.environments import nests
from impala_mm.environments.make import make_environments
from impala_mm.environments.texts import read_texts
from impala_mm.environments.types import BadLevel, Options, Step
from impala_mm.environments.vectors import VectorLevel

MODES = ("NEXT_STEP", "DISABLED", "SAME_STEP")


def _copied(step):
    return Step(*nests.pack(step, [np.array(leaf) for leaf in nests.flatten(step)]))


def _vector(make, count, seed=3, **kwargs):
    """Return a vector as a run would play it, and its spec's note."""
    made = VectorLevel(f"a level of {kwargs}", lambda num_envs: make(num_envs, **kwargs), Options())
    return made.make(count, seed), made.spec().note


def _sample(envs, step, random):
    """Return random actions that the masks allow, as a policy chooses them."""
    leaves, masks = [], iter(nests.flatten(step.mask))
    for part in envs.spec.actions.leaves:
        if part.choices:
            mask = next(masks) if envs.spec.masks != () else np.ones((len(step.first), 99), bool)
            ends = np.cumsum(part.choices)
            each = [
                [random.choice(np.flatnonzero(row[end - n : end])) for row in mask]
                for n, end in zip(part.choices, ends, strict=True)
            ]
            leaves.append(np.stack(each, 1).reshape(-1, *part.shape).astype(np.int32))
        else:
            size = (len(step.first), *part.shape)
            leaves.append(random.uniform(-1, 1, size).astype(np.float32))
    return envs.spec.actions.pack(leaves)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("make", [make_sync, Alike])
def test_a_vector_that_resets_in_the_next_step_plays_as_single_environments_do(game, make):
    (envs, note), random = _vector(make, 3, game=game), np.random.default_rng(0)
    single = make_environments(level(GAMES[game]), 3, 3)
    assert envs.spec._replace(level_name="", without_goals="") == (
        single.spec._replace(level_name="", without_goals="")
    )
    step, due = envs.reset(), single.reset()
    for _ in range(25):
        for mine, theirs in zip(nests.flatten(step), nests.flatten(due), strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype
        actions = _sample(envs, step, random)
        step, due = envs.step(actions), single.step(actions)
    assert envs.faults == []
    assert note == ""
    assert sorted(envs.episodes()) == sorted(single.episodes()) != []


class _One:
    """An environment that is stepped alone, as `vectors` describes it; `entries` has its column."""

    def __init__(self, environment, seed, mode, resets_some):
        self._environment, self._mode, self._resets_some = environment, mode, resets_some
        self.ended, self._total, self._length, self.episodes = False, 0.0, 0, []
        self.entries = [(0.0, False, False, environment.reset(seed=seed)[0], True)]

    def step(self, action, all_ended):
        if self.ended:
            self.entries.append((0.0, False, False, self._begin(all_ended), True))
            return
        seen, reward, terminated, truncated, _ = self._environment.step(action)
        self._total, self._length = self._total + reward, self._length + 1
        self.entries.append((reward, terminated, truncated, seen, False))
        self.ended = terminated or truncated
        if self.ended:
            self.episodes.append((self._total, self._length))
            self._total = self._length = 0
            if self._mode == "SAME_STEP":
                self._environment.reset()

    def _begin(self, all_ended):
        self.ended, reset = False, self._environment.reset
        if self._mode == "DISABLED":
            seen, _ = reset()
        if self._resets_some and all_ended:
            return seen if self._mode == "DISABLED" else reset()[0]
        seen, reward, terminated, truncated, _ = self._environment.step(0)
        if self._mode == "SAME_STEP" and (terminated or truncated):
            seen, reward = reset()[0], 0
        if self._resets_some:
            return reset()[0]
        self._total = reward
        return seen


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("make", [make_sync, Alike])
@pytest.mark.parametrize("count", [1, 4])
def test_the_other_modes_play_as_environments_do_that_are_reset_by_hand(make, mode, count):
    (envs, note), random = _vector(make, count, mode=mode), np.random.default_rng(0)
    resets_some = mode == "DISABLED" or make is make_sync
    ones = [_One(GAMES["Paying"](), 3 + i, mode, resets_some) for i in range(count)]
    steps = [_copied(envs.reset())]
    for _ in range(40):
        actions = _sample(envs, steps[-1], random)
        steps.append(_copied(envs.step(actions)))
        all_ended = all(one.ended for one in ones)
        for one, action in zip(ones, actions, strict=True):
            one.step(action, all_ended)
    for i, one in enumerate(ones):
        for t, (step, due) in enumerate(zip(steps, one.entries, strict=True)):
            assert tuple(array[i] for array in step[:5]) == due, f"environment {i}, step {t}"
    assert envs.faults == []
    episodes = [e for e in envs.episodes() if e.whole_game]
    for i, one in enumerate(ones):
        mine = [(e.episode_return, e.length) for e in episodes if e.environment == i]
        assert mine == one.episodes != []
    assert ("idle action" in note) == (not resets_some)


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("game", ["Doors", "Rooms", "Stalls", "Signals"])
def test_idle_actions_are_allowed_ones(game, mode):
    (envs, _), random = _vector(Alike, 3, game=game, mode=mode), np.random.default_rng(0)
    step, ends = envs.reset(), 0
    for _ in range(45):  # the games raise an error for a forbidden action
        step = envs.step(_sample(envs, step, random))
        ends += step.truncated.sum()
    assert envs.faults == []
    assert ends == 3 * 4


@pytest.mark.parametrize("where", ["module", "file"])
def test_a_vector_of_arrays_is_made_by_name_with_its_seed_pictures_and_arguments(where, tmp_path):
    """A file is what `impala_mm.train` makes of a class of a script."""
    level, file = "vectored:Arithmetic", tmp_path / "mine.environment"
    file.write_bytes(cloudpickle.dumps(Arithmetic))
    level = level if where == "module" else str(file)
    envs = make_environments(level, 2, 7, renders=True, workers=2)
    step = envs.reset()
    numbers = np.random.default_rng(7).random((2, 1)).astype(np.float32)
    np.testing.assert_array_equal(step.observation, numbers)
    assert envs.step(np.array([3, 0])).reward.tolist() == [3, 0]
    assert envs.picture().shape == (4, 6, 3)
    assert envs.picture_rate == 5
    wrapped = make_environments(
        "vectored:make_sync",
        2,
        0,
        env_kwargs='{"game": "Doors"}',
        env_wrappers='gymnasium.wrappers.vector:ClipReward{"max_reward": 0.25}',
    )
    step = wrapped.reset()
    assert wrapped.step(_sample(wrapped, step, np.random.default_rng(0))).reward.max() == 0.25


def test_the_example_of_a_vector_plays_as_the_example_of_an_environment():
    random = np.random.default_rng(0)
    envs = make_environments("sandbox.own_vector:Corridors", 4, 0)
    single = make_environments("sandbox.own_environment:Corridor-v0", 4, 0)
    step, due = envs.reset(), single.reset()
    for _ in range(120):
        for mine, theirs in zip(nests.flatten(step), nests.flatten(due), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        actions = (random.random(4) < 0.8).astype(np.int32)
        step, due = envs.step(actions), single.step(actions)
    assert sorted(envs.episodes()) == sorted(single.episodes()) != []


BROKEN = {  # what a step of three environments returns wrong -> the fault
    "raises": (lambda *_: 1 / 0, "all 3 environments of .*: ZeroDivisionError"),
    "reward": (
        lambda seen, reward, *rest: (seen, np.where([0, 1, 0], np.nan, reward), *rest),
        "environment 1 returned the reward nan",
    ),
    "infinity": (
        lambda seen, *rest: (np.where([[0], [0], [1]], np.inf, seen), *rest),
        "environment 2 returned observation with NaN or infinity",
    ),
    "fewer": (
        lambda seen, *rest: (seen[:2], *rest),
        r"observations of shape \[2, 1\], .* \[1\] in each of 3 environments",
    ),
    "column": (
        lambda seen, reward, *rest: (seen, reward[:, None], *rest),
        r"rewards of shape \[3, 1\], which must be \[3\]",
    ),
    "four values": (lambda *results: results[:4], "step must return .observation, reward, term"),
    "always over": (
        lambda seen, reward, *rest: (seen, reward, np.ones(3, bool), np.zeros(3, bool), {}),
        "environment 0 ended an episode, and again in the step after it, which is its reset by",
    ),
    "a mask": (lambda *results: (*results[:4], {"action_mask": 1}), "first reset offered none"),
}


@pytest.mark.parametrize("bug", BROKEN)
def test_a_fault_costs_the_vector_and_the_next_step_opens_another(bug):
    made, wrong = [], BROKEN[bug][0]

    def make(num_envs, seed):
        made.append((Alike(num_envs), seed))
        return made[-1][0]

    envs = VectorLevel(f"broken {bug}", make, Options()).make(3, 5)
    envs.reset()
    assert envs.step(np.zeros(3, int)).reward.tolist() == [0.5] * 3
    made[-1][0].wrong = wrong
    while not (step := envs.step(np.zeros(3, int))).fault.any():
        pass
    assert step.fault.all()
    assert step.first.all()
    assert not step.observation.any()
    (fault,) = envs.faults
    assert re.search(BROKEN[bug][1], fault.text), fault.text
    assert fault.environment is None, "all of them are broken"
    before, _ = len(made), envs.episodes()
    step = envs.step(np.zeros(3, int))
    assert len(made) == before + 1
    assert step.first.all()
    assert not step.fault.any()
    assert made[-2][1] == 5 != made[-1][1]
    assert envs.step(np.zeros(3, int)).reward.tolist() == [0.5] * 3
    assert envs.episodes() == []


def test_a_vector_that_cannot_be_opened_again_is_one_fault_a_try():
    willing, opened = [True], []

    def make(num_envs):
        opened.append(num_envs)
        if not willing[0]:
            raise OSError("no simulator")
        return Alike(num_envs, wrong=lambda *_: 1 / 0)

    envs = VectorLevel("unwilling", make, Options()).make(2, 0)
    envs.reset()
    willing[0] = False
    envs.step(np.zeros(2, int))
    opened.clear()
    for _ in range(4):
        assert envs.step(np.zeros(2, int)).fault.all()
    assert opened == [2, 2]
    reason = "all 2 environments of unwilling: OSError: no simulator"
    assert [fault.text for fault in envs.faults[1:]] == [reason] * 2
    envs.close()


def test_a_vector_that_is_opened_again_and_cannot_be_reset_is_closed():
    made, closed, willing = [], [], [True]

    class Unresettable(Alike):
        def __init__(self, num_envs):
            super().__init__(num_envs, wrong=lambda *_: 1 / 0)
            made.append(self)

        def reset(self, *, seed=None, options=None):
            if not willing[0]:
                raise OSError("no reset")
            return super().reset(seed=seed)

        def close(self):
            closed.append(self)
            super().close()

    envs = VectorLevel("unresettable", Unresettable, Options()).make(2, 0)
    envs.reset()
    willing[0] = False
    envs.step(np.zeros(2, int))
    assert envs.step(np.zeros(2, int)).fault.all()
    assert envs.faults[-1].text.endswith("OSError: no reset")
    envs.close()
    assert len(closed) == len(made) >= 2
    assert set(closed) == set(made)


class _Tensor:
    """An array of a device: NumPy gets it by `cpu` alone."""

    device = "cuda:1"

    def __init__(self, array):
        self._array = array

    def cpu(self):
        return self._array


def test_arrays_of_a_device_are_copied_and_the_user_is_told():
    class Elsewhere(Alike):
        def reset(self, **given):
            seen, info = super().reset(**given)
            return _Tensor(seen), info

        def step(self, actions):
            *arrays, info = super().step(actions)
            return *map(_Tensor, arrays), info

    (envs, note), (same, _) = _vector(Elsewhere, 3), _vector(Alike, 3)
    envs.reset(), same.reset()
    for _ in range(9):
        step, due = envs.step(np.ones(3, int)), same.step(np.ones(3, int))
        for mine, theirs in zip(nests.flatten(step), nests.flatten(due), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert "_Tensor on cuda:1, which is copied to NumPy arrays in each step" in note


class Reaching(gymnasium.Env):
    """An environment with goals, whose steps pay 1."""

    action_space = Discrete(2)
    place = Box(-1, 1, (2,))
    observation_space = Dict(observation=place, achieved_goal=place, desired_goal=place)

    def reset(self, *, seed=None, options=None):
        return {key: np.zeros(2, np.float32) for key in self.observation_space}, {}

    def compute_reward(self, achieved, desired, info):
        if achieved[0] == 1:
            raise ArithmeticError
        return -np.abs(achieved - desired).max()

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}


def test_goals_are_judged_by_one_of_the_environments_and_an_error_breaks_the_vector():
    envs, _ = _vector(lambda num_envs: SyncVectorEnv([Reaching] * num_envs), 3)
    assert envs.spec.without_goals == ""
    envs.reset()
    achieved, desired = np.zeros([2, 2], np.float32), np.float32([[0, 0], [0, 0.5]])
    rewards, _ = envs.judge_goals(2, achieved, desired)
    assert rewards.tolist() == [0, -0.5]
    with pytest.raises(BadLevel, match=r"compute_reward of .* raised ArithmeticError"):
        envs.judge_goals(2, achieved + 1, desired)
    assert envs.step(np.zeros(3, int)).fault.all()
    assert not envs.step(np.zeros(3, int)).fault.any()


@pytest.mark.slow
def test_a_vector_of_processes_plays_as_one_of_this_process():
    envs, _ = _vector(lambda num_envs: AsyncVectorEnv([GAMES["Paying"]] * num_envs), 2)
    same, _ = _vector(make_sync, 2)
    step, due = envs.reset(), same.reset()
    for _ in range(9):
        for mine, theirs in zip(nests.flatten(step), nests.flatten(due), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        step, due = envs.step(np.ones(2, int)), same.step(np.ones(2, int))
    envs.close()


def test_masks_of_the_environments_in_other_processes_are_read():
    envs, _ = _vector(lambda num_envs: AsyncVectorEnv([GAMES["Rooms"]] * num_envs), 2)
    same, _ = _vector(lambda num_envs: make_sync(num_envs, "Rooms"), 2)
    step, due = envs.reset(), same.reset()
    assert (nests.flatten(step.mask)[0] == nests.flatten(due.mask)[0]).all()
    assert not nests.flatten(step.mask)[0].all()
    envs.close()


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_killed_process_of_a_vector_is_a_fault_that_names_it_and_the_vector_is_replaced(killed):
    made = []

    def make(num_envs):
        made.append(AsyncVectorEnv([Reaching] * num_envs))
        return made[-1]

    envs = VectorLevel("reaching", make, Options()).make(3, 0)
    envs.reset()
    before = made[-1].processes
    os.kill(before[killed].pid, signal.SIGKILL)
    assert envs.step(np.zeros(3, int)).fault.all()
    assert f"process {killed} of the vector was killed by SIGKILL" in envs.faults[-1].text
    assert not any(process.is_alive() for process in before)
    assert envs.step(np.zeros(3, int)).first.all()
    assert envs.step(np.zeros(3, int)).reward.tolist() == [1] * 3
    goals = np.float32([[0, 0], [0, 0.5]])
    assert envs.judge_goals(2, goals * 0, goals)[0].tolist() == [0, -0.5]
    envs.close()


class Telling(GAMES["Paying"]):
    """A game with a text in its observations."""

    observation_space = Dict(words=Text(20), seen=Counting.observation_space)

    def _with_words(self, seen):
        return {"words": f"step {seen[0]:g}", "seen": seen}

    def reset(self, **options):
        seen, info = super().reset(**options)
        return self._with_words(seen), info

    def step(self, action):
        seen, *rest = super().step(action)
        return self._with_words(seen), *rest


@pytest.mark.parametrize("mode", MODES)
def test_texts_are_read_of_all_environments(mode):
    def make_telling(num_envs):
        return SyncVectorEnv([Telling] * num_envs, autoreset_mode=AutoresetMode[mode])

    envs, _ = _vector(make_telling, 3)
    step, ends = envs.reset(), 0
    for _ in range(25):
        seen = step.observation
        for words, number in zip(seen["words"], seen["seen"][:, 0], strict=True):
            assert (words == read_texts(np.array([f"step {number:g}"]))[0]).all()
        step = envs.step(np.ones(3, int))
        ends += (step.terminated | step.truncated).sum()
    assert (envs.faults, ends > 3) == ([], True)


def test_a_last_observation_that_is_not_finite_is_a_fault():
    def wrong(seen, rewards, terminated, truncated, info):
        last = {"final_obs": np.full_like(seen, np.nan)} if truncated.any() else {}
        return seen, rewards, terminated, truncated, info | last

    envs, _ = _vector(Alike, 1, seed=1, mode="SAME_STEP", wrong=wrong)
    envs.reset()
    while not envs.faults:
        step = envs.step(np.zeros(1, int))
        assert step.fault.all() or not step.truncated.any()
    assert envs.faults[0].text.endswith("environment 0 returned observation with NaN or infinity")


def test_a_truncation_without_its_last_observation_is_a_fault_and_a_termination_is_none():
    hide = lambda *results: (*results[:4], {})  # noqa: E731
    envs, _ = _vector(Alike, 1, seed=1, mode="SAME_STEP", wrong=hide)
    envs.reset()
    for _ in range(5):  # a termination is the second episode
        step = envs.step(np.zeros(1, int))
    assert not step.fault.any()
    for _ in range(9):
        if (step := envs.step(np.zeros(1, int))).fault.any():
            break
    assert step.fault.all()
    assert 'environment 0 was truncated, and info["final_obs"] has no last' in envs.faults[0].text


def _silent(num_envs):
    vector = Alike(num_envs)
    vector.metadata = {}
    return vector


REFUSED = {  # maker, options, sentence
    "another number": (
        lambda num_envs: Alike(num_envs + 1),
        {},
        "made a vector of 2 environments, and was asked for 1: it must make as many as",
    ),
    "a single one": (
        lambda num_envs: GAMES["Paying"](),
        {},
        "it has no num_envs and no single_obs",
    ),
    "no mode": (
        _silent,
        {},
        r'does not say how its episodes begin again: set metadata\["autoreset_mode"\] to one of '
        "gymnasium.vector's AutoresetMode.NEXT_STEP",
    ),
    "repeats": (Alike, {"num_action_repeats": 2}, "--num_action_repeats=2: .* cannot repeat them"),
    "choices": (Alike, {"discretization": "lin"}, "--discretization=lin: .* is a vector, which"),
    "a number": (Alike, {"env_kwargs": '{"num_envs": 3}'}, "num_envs is not for it: give --num_e"),
    "an argument": (Alike, {"env_kwargs": '{"gam": 3}'}, "cannot be made .*unexpected keyword"),
    "a wrapper": (
        Alike,
        {"env_wrappers": "gymnasium.wrappers.vector:ClipReward"},
        "ClipReward cannot wrap this",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_vector_that_cannot_be_played_is_refused_with_what_to_do(reason):
    make, options, sentence = REFUSED[reason]
    with pytest.raises(BadLevel, match=sentence) as refusal:
        VectorLevel("this", make, Options(**options)).spec()
    assert "\n" not in str(refusal.value)


def test_a_maker_of_single_environments_that_returns_a_vector_is_told_how_to_say_so():
    with pytest.raises(BadLevel, match="or have a parameter num_envs"):
        make_environments("vectored:make_three", 3, 0)
