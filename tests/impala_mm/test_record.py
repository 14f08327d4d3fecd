"""A video shows the game that the agent plays, and the agent sees what it saw in training."""

from types import SimpleNamespace

import cv2
import gymnasium
import numpy as np
import pytest
from agents import make_run

from impala_mm import environments, record
from impala_mm.environments import BadLevel
from impala_mm.environments.catch import Catch
from impala_mm.environments.shown import open_shown
from impala_mm.policy import load_policy
from impala_mm.record import record_game
from impala_mm.video import Unrecordable

_FIELDS = ("reward", "terminated", "truncated", "observation", "first")


def _same(one, other):
    return all((getattr(one, name) == getattr(other, name)).all() for name in _FIELDS)


@pytest.mark.parametrize(
    ("level_name", "options"),
    [("ALE/Breakout-v5", {"no_reward_steps": 40}), ("PongNoFrameskip-v4", {})],
)
def test_atari_in_colour_is_the_game_that_the_agent_sees(level_name, options):
    shown = open_shown(level_name, 5, **options)
    plain = environments.make(level_name, 1, 5, **options)
    draws = np.random.default_rng(2)
    one, other, resets = shown.environments.reset(), plain.reset(), 0
    for _ in range(200):
        assert _same(one, other)
        picture = shown.picture()
        assert picture.shape == (210, 160, 3)
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        seen = cv2.resize(grey, (84, 84), interpolation=cv2.INTER_AREA)
        # Of two frames the greater is taken for each colour here and of the grey there: where two
        # colours meet it is brighter, and nowhere darker.
        brighter = seen.astype(int) - one.observation[0, ..., 0]
        assert brighter.min() >= -1
        assert (brighter > 1).mean() < 0.02
        resets += int(one.first[0])
        action = draws.integers(len(shown.actions), size=1)
        one, other = shown.environments.step(action), plain.step(action)
    assert (picture[..., 0] != picture[..., 2]).any(), "it has colours"
    assert shown.fps == 15
    if options:
        assert resets > 3, "games that were cut began anew, in both"


@pytest.mark.parametrize(
    ("level_name", "shape", "actions"),
    [
        ("CartPole-v1", (400, 600, 3), ["0", "1"]),
        ("gym:CartPole-v1", (400, 600, 3), ["0", "1"]),
        ("catch", (320, 160, 3), ["left", "stay", "right"]),
        ("memory", (80, 256, 3), ["0", "1"]),
    ],
)
def test_environments_that_draw_themselves_are_shown_as_they_are_now(level_name, shape, actions):
    shown, plain = open_shown(level_name, 3), environments.make(level_name, 1, 3)
    assert shown.actions == actions
    assert shown.fps > 1
    one, other = shown.environments.reset(), plain.reset()
    pictures = []
    for _ in range(9):
        assert _same(one, other)
        pictures.append(shown.picture().copy())
        assert (pictures[-1].dtype, pictures[-1].shape) == (np.uint8, shape)
        one, other = (each.step(np.zeros(1, np.int64)) for each in (shown.environments, plain))
    assert (pictures[0] != pictures[-1]).any()
    assert (pictures[4] != pictures[-1]).any()


def test_an_environment_that_draws_nothing_is_refused_in_a_sentence():
    with pytest.raises(BadLevel, match=r"Corridor-v0 draws no pictures \(rgb_array is not among"):
        open_shown("sandbox.own_environment:Corridor-v0", 1)


def _spied(policy):
    """A policy that takes all actions in turn, and the list of (entry, action) that will be."""
    asked = []

    def act(entry, state, explore):
        action, state, extras = policy.act(entry, state, explore)
        action = ((action + len(asked)) % policy.spec.num_actions).astype(np.int32)
        kept = {n: getattr(entry, n).numpy() for n in ("observation", "reward", "first", "action")}
        asked.append((kept, action))
        return action, state, extras

    names = ("config", "spec", "levels", "initial_state", "entry", "judge")
    return SimpleNamespace(act=act, **{name: getattr(policy, name) for name in names}), asked


def test_while_it_is_recorded_the_agent_sees_200_steps_as_in_training(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "_MOST_STEPS", 200)
    level_name = "PongNoFrameskip-v0"
    run = make_run(tmp_path, level_name=level_name, agent_name="ShallowConvAgent")
    policy, asked = _spied(load_policy(run))
    recorded = record_game(policy, level_name, tmp_path / "a.mp4", seed=4)
    assert len(asked) <= 200
    plain = environments.make(level_name, 1, 4)
    step, last, total = plain.reset(), np.zeros(1), 0.0
    for entry, action in asked:
        assert (entry["observation"] == step.observation).all()
        assert (entry["first"] == step.first).all()
        assert entry["reward"] == step.reward
        assert entry["action"] == last
        step, last = plain.step(action), action
        total += step.reward[0]
    assert recorded == (total, len(asked))
    assert total < 0, "the last reward was not always 0"
    assert (tmp_path / "a.mp4").stat().st_size > 1000


def test_a_recorded_game_is_whole_and_ends_as_the_environment_says(tmp_path):
    av = pytest.importorskip("av")
    policy = load_policy(make_run(tmp_path, level_name="catch"))
    staying, _ = _spied(policy)
    staying.act = lambda entry, state, explore: (np.array([1], np.int32), state, None)
    path, returns = tmp_path / "a.mp4", set()
    for seed in range(8):
        episode_return, length = record_game(staying, "catch", path, seed=seed)
        assert length == 9
        with av.open(str(path)) as file:
            shown = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        assert len(shown) == length + 4, "the end is held for a second"
        middle = shown[-1][9 * 32 + 16, 2 * 32 + 16].astype(int)  # of the paddle's cell
        caught = np.abs(middle - (245, 158, 66)).max() < 40
        assert caught == (episode_return == 1)
        returns.add(episode_return)
    assert returns == {-1.0, 1.0}, "both ends were looked at"
    one, other = (
        record_game(policy, "catch", path, deterministic=True, overlay=overlay)
        for overlay in (False, True)
    )
    assert one == other, "who looks on changes nothing"
    with av.open(str(path)) as file:
        assert file.streams.video[0].height > 320, "there is a strip below"


class _Breaks(Catch):
    def step(self, action):
        if self._row == 3:
            raise OSError("a wire came loose")
        return super().step(action)


def test_a_game_that_breaks_leaves_no_video(tmp_path, monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register("Breaks-v0", _Breaks)
    policy = load_policy(make_run(tmp_path / "run", level_name="catch"))
    with pytest.raises(Unrecordable, match=r"the game broke: environment 0 of Breaks-v0: OSError"):
        record_game(policy, "Breaks-v0", tmp_path / "videos" / "a.mp4")
    assert not list((tmp_path / "videos").iterdir())
