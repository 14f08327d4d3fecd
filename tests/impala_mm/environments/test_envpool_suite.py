"""The suite `envpool`: refusals, and each family beside the environment that it rewrites."""

import importlib.metadata
import importlib.util

import numpy as np
import pytest

from impala_mm.environments import envpool_suite
from impala_mm.environments.make import find_level, level_spec, make_environments
from impala_mm.environments.texts import read_texts
from impala_mm.environments.types import BadLevel

needs_envpool = pytest.mark.skipif(
    not importlib.util.find_spec("envpool"), reason="needs impala_mm[envpool]"
)


@pytest.mark.skipif(bool(importlib.util.find_spec("envpool")), reason="envpool is installed")
def test_without_the_package_its_name_is_said():
    with pytest.raises(BadLevel, match=r"needs envpool: pip install 'impala_mm\[envpool\]'"):
        find_level("envpool:HalfCheetah-v4")


@needs_envpool
@pytest.mark.parametrize(
    ("level", "options", "sentence"),
    [
        ("HalfCheeta-v4", {}, "no environment HalfCheeta-v4; did you mean envpool:HalfCheetah-v4"),
        ("TicTacToe-v1", {}, "a game of several players"),
        ("CheetahRun-v1", {"num_action_repeats": 2}, "--num_action_repeats=2: .* is a vector"),
        ("Pong-v5", {"env_kwargs": '{"episodic_lif": 1}'}, "did you mean episodic_life"),
        ("Pong-v5", {"env_kwargs": '{"batch_size": 1}'}, "has no setting batch_size: it has diff"),
    ],
)
def test_what_cannot_be_played_is_refused(level, options, sentence):
    with pytest.raises(BadLevel, match=sentence):
        level_spec(f"envpool:{level}", **options)


@needs_envpool
def test_values_that_are_wrong_with_this_numpy_are_seen_at_the_start(monkeypatch):
    real = envpool_suite._make

    def broken(*arguments, **settings):
        """Return a pool as of envpool 0.8 with NumPy 2: each array is its first number."""
        pool = real(*arguments, **settings)
        step, reset = pool.step, pool.reset
        one = lambda array: np.full_like(array, array.flat[0])  # noqa: E731
        pool.reset = lambda **given: (one(reset(**given)[0]), {})
        pool.step = lambda actions: (one(step(actions)[0]), *step(actions)[1:])
        return pool

    version = importlib.metadata.version("envpool")
    other_seed = lambda *given, **settings: real(*given, **settings | {"seed": 1})  # noqa: E731
    for wrong in (broken, other_seed):
        envpool_suite._wrong_values.cache_clear()
        monkeypatch.setattr(envpool_suite, "_make", wrong)
        try:
            with pytest.raises(BadLevel, match=rf"envpool {version} does not fit .* CartPoles"):
                find_level("envpool:Pong-v5")
        finally:
            envpool_suite._wrong_values.cache_clear()


@needs_envpool
def test_specs_are_those_of_each_family():
    pong = level_spec("envpool:Pong-v5", num_action_repeats=2)
    assert (pong.action_repeats, pong.observation.shape) == (2, (84, 84, 4))
    assert level_spec("envpool:Pong-v5").action_repeats == 4
    cheetah = level_spec("envpool:HalfCheetah-v4")
    assert (cheetah.action_repeats, cheetah.reward_threshold) == (1, 4800)
    # Of these, envpool's own threshold is that of a step, or zero.
    assert level_spec("envpool:MetaWorld/Reach-v3").reward_threshold is None
    assert level_spec("envpool:AdroitHandHammer-v1").reward_threshold is None
    run = level_spec("envpool:CheetahRun-v1")
    assert {key: tuple(part.shape) for key, part in run.observation.items()} == {
        "position": (8,),
        "velocity": (9,),
    }
    baby, original = level_spec("envpool:BabyAI-GoToLocal-v0"), read_texts(np.array(["go to"]))[0]
    assert baby.observation["mission"].shape == original.shape
    envs = make_environments("envpool:BabyAI-GoToLocal-v0", 2, 0)
    for mission in envs.reset().observation["mission"]:
        np.testing.assert_array_equal(mission[:6], original[:6])
    space = find_level("envpool:CheetahRun-v1").open(False).observation_space["velocity"]
    assert np.isneginf(space.low).all()


def _play(name, games, **options):
    """Return [return, length, terminated] of `games` games of random actions."""
    count, random = 8, np.random.default_rng(0)
    envs = make_environments(name, count, 11, **options)
    envs.reset()
    actions, played, ends, steps = envs.spec.actions, [], {}, 0
    while len(played) < games and steps < 60_000:
        if actions.discrete:
            chosen = random.integers(0, actions.discrete, count).astype(np.int32)
        else:
            (part,) = actions.leaves
            chosen = random.uniform(-1, 1, (count, *part.shape)).astype(np.float32)
        step, steps = envs.step(chosen), steps + 1
        ends |= {i: bool(step.terminated[i]) for i in range(count)}
        played += [
            (e.episode_return, e.length, ends[e.environment])
            for e in envs.episodes()
            if e.whole_game
        ]
    assert envs.faults == []
    envs.close()
    return np.array(played[:games], np.float64)


SAME = {  # envpool's id -> the original, and games of each
    "CartPole-v1": ("CartPole-v1", 300),
    "Acrobot-v1": ("Acrobot-v1", 40),
    "Pendulum-v1": ("Pendulum-v1", 60),
    "MountainCar-v0": ("MountainCar-v0", 20),
    "FrozenLake-v1": ("FrozenLake-v1", 300),
    "Taxi-v3": ("Taxi-v4", 60),
    "Blackjack-v1": ("Blackjack-v1", 1000),
    "Pong-v5": ("PongNoFrameskip-v4", 30),
    "Breakout-v5": ("BreakoutNoFrameskip-v4", 80),
    "HalfCheetah-v4": ("HalfCheetah-v5", 24),
    "Hopper-v5": ("Hopper-v5", 200),
    "Walker2d-v5": ("Walker2d-v5", 200),
    "LunarLander-v3": ("LunarLander-v3", 100),
    "MiniGrid-Empty-5x5-v0": ("minigrid:MiniGrid-Empty-5x5-v0", 60),
    "MiniGrid-DoorKey-6x6-v0": ("minigrid:MiniGrid-DoorKey-6x6-v0", 40),
}


@pytest.mark.slow
@needs_envpool
@pytest.mark.parametrize("id_", SAME)
def test_random_games_have_the_statistics_of_the_original(id_):
    original, games = SAME[id_]
    options = {"life_loss_ends": False} if "Frameskip" in original else {}
    if "minigrid" in original:
        pytest.importorskip("minigrid")
        options["env_wrappers"] = "minigrid.wrappers:ImgObsWrapper"
    try:
        due = _play(original, games, **options)
    except BadLevel as error:
        pytest.skip(str(error))
    mine = _play(f"envpool:{id_}", games)
    for column, what in enumerate(("return", "length", "share of terminations")):
        a, b = mine[:, column], due[:, column]
        margin = 4 * np.sqrt((a.var() + b.var()) / games) + 1e-6
        assert abs(a.mean() - b.mean()) <= margin, (what, a.mean(), b.mean(), margin)


@pytest.mark.slow
@needs_envpool
@pytest.mark.parametrize(
    ("level", "length"),
    [
        ("gfootball/academy_empty_goal_close-v1", None),
        ("gfootball/academy_3_vs_1_with_keeper-v1", None),
        ("BabyAI-GoToLocal-v0", None),
        ("CheetahRun-v1", 1000),
        ("FetchReach-v4", 50),
        ("MetaWorld/Reach-v3", 500),
        ("Knapsack-v1", None),
        ("highway-fast-v0", None),
    ],
)
def test_a_family_without_an_original_here_plays_and_ends_as_it_says(level, length):
    envs, random = make_environments(f"envpool:{level}", 4, 0), np.random.default_rng(0)
    step, lengths = envs.reset(), []
    for _ in range(1100):
        leaves = []
        for part in envs.spec.actions.leaves:
            if part.choices:
                likes = random.random((4, sum(part.choices)))
                leaves.append((likes * (step.mask if envs.spec.masks != () else 1)).argmax(1))
            else:
                leaves.append(random.uniform(-1, 1, (4, *part.shape)).astype(np.float32))
        step = envs.step(envs.spec.actions.pack(leaves))
        lengths += [e.length for e in envs.episodes() if e.whole_game]
    assert envs.faults == []
    assert len(lengths) >= 4
    assert length is None or set(lengths) == {length}


@pytest.mark.slow
@needs_envpool
def test_a_missing_library_of_the_system_is_named():
    try:
        level_spec("envpool:CoinrunEasy-v0")
    except BadLevel as error:
        assert "Qt 5" in str(error)  # noqa: PT017 - where it is installed, it plays
        assert "apt install" in str(error)  # noqa: PT017
