"""Complete games: none favoured, none cut short, with raw returns, and shown to viewers."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from counting import Counting, level
from saved_run import save

import impala_mm
from impala_mm import errors
from impala_mm.environments import types
from impala_mm.environments.make import make_environments
from impala_mm.evaluation import results
from impala_mm.evaluation.games import (
    IDLE_STEPS,
    Unplayable,
    each_plays,
    evaluate_level,
    games_per_env,
    play_games,
)
from impala_mm.policy.policy import load_policy
from impala_mm.teachers.opponents import load_player


class Uneven(gymnasium.Env):
    """Episodes of 10 steps with return 0, or of 300 with return 1: each half the time."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._long = bool(self.np_random.integers(2))
        self._left = 300 if self._long else 10
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._left -= 1
        over = not self._left
        return np.zeros(1, np.float32), float(over and self._long), over, False, {}


class Plays:
    """A stand-in for a policy, which always takes the same action and counts the calls."""

    def __init__(self, action=0):
        self._action = action
        self.entries = []

    def initial_state(self, batch):
        return ()

    def entry(self, observation, reward, action, first, mask):
        assert mask == ()
        self.entries.append((observation.copy(), reward.copy(), action.copy(), first.copy()))

    def step(self, entry, state, explore):
        return np.full(len(self.entries[-1][3]), self._action), state, ()


@pytest.mark.parametrize("copies", [8, 100])
def test_short_games_are_not_favoured(copies):
    playing = make_environments(level(Uneven), copies, seed=0)
    games = play_games(Plays(), playing, each_plays(games_per_env(200, copies)), explore=True)
    returns = [game.episode_return for game in games]
    assert len(returns) == 200
    assert np.mean(returns) == pytest.approx(0.5, abs=0.1)
    assert [game.length for game in games] == [300 if r else 10 for r in returns]
    if copies == 100:
        assert np.mean(returns[:50]) < 0.1, "those that end first are the short ones"


@pytest.mark.parametrize(("games", "copies"), [(8, 8), (17, 3)])
def test_quotas_add_up_and_differ_by_one_at_most(games, copies):
    quotas = games_per_env(games, copies)
    assert quotas.sum() == games
    assert quotas.max() - quotas.min() <= 1
    assert quotas.min() >= 1


def test_the_policy_is_fed_what_an_actor_feeds_it():
    playing = make_environments(level(Counting), 1, seed=0)
    policy = Plays(action=2)
    games = play_games(policy, playing, each_plays([2]), explore=True)
    assert [game.length for game in games] == [3, 3]
    seen = [
        (*observation[0], reward[0], action[0], first[0])
        for observation, reward, action, first in policy.entries
    ]
    assert seen[0] == (0, 0, 0, True)
    # The very last observation, entry 7, calls for no action.
    assert [row[3] for row in seen] == [True, False, False, False, True, False, False]
    assert [row[0] for row in seen] == list(range(7))
    assert [row[1] for row in seen] == [0, 2, 2, 2, 0, 2, 2]
    assert [row[2] for row in seen[1:]] == [2] * 6


def test_environments_that_break_are_made_anew_and_their_games_do_not_count():
    """Each of several faults in one step is logged once."""

    class Breaks(Uneven):
        broken = 0

        def step(self, action):
            kind = type(self)
            if kind.broken < 4 and self._left == 5:
                kind.broken += 1
                if kind.broken == 4:
                    raise ValueError("another")
                raise RuntimeError("out of order")
            return super().step(action)

    said = []
    playing = make_environments(level(Breaks), 4, seed=0)
    games = play_games(Plays(), playing, each_plays(games_per_env(8, 4)), True, say=said.append)
    assert len(games) == 8
    assert {game.length for game in games} <= {10, 300}
    first, *rest = said
    assert "RuntimeError: out of order; it is rebuilt, and its game is not counted\n" in first
    assert '    raise RuntimeError("out of order")\n' in first
    assert ["ValueError: another" in line for line in rest] == [True, False]
    assert rest[1].startswith("... 2 more faults of this kind: environment ")

    class Broken(Uneven):
        def step(self, action):
            raise RuntimeError("out of order")

    playing = make_environments(level(Broken), 2, seed=0)
    with pytest.raises(Unplayable, match=r"failed 10 times; the last error: .* out of order\n"):
        play_games(Plays(), playing, each_plays(games_per_env(8, 2)), True)


def test_a_level_of_a_run_from_python(tmp_path):
    save(tmp_path, level_name="catch")

    def evaluate(**more):
        return impala_mm.evaluate(tmp_path, num_episodes=9, num_envs=3, **more)

    result = evaluate()
    assert (result.level, result.frames, result.num_envs) == ("catch", 1000.0, 3)
    assert len(result.returns) == 9
    assert set(result.returns) <= {-1.0, 1.0}
    assert result.lengths == [9] * 9
    assert result.mean == pytest.approx(np.mean(result.returns))
    assert result.normalised_score == []
    assert evaluate() == result, "the seed says how games go"
    assert evaluate(seed=2).returns != result.returns
    with pytest.raises(errors.BadCheckpoint, match=r"--eval_epsilon=0.1 has no effect"):
        evaluate(eval_epsilon=0.1)


def test_the_share_of_random_actions_in_an_evaluation_can_be_chosen(tmp_path):
    save(tmp_path, sure=True, algorithm="dqn", level_name="catch")
    greedy, usual, random = (
        impala_mm.evaluate(tmp_path, 30, **flags).returns
        for flags in ({"deterministic": True}, {"eval_epsilon": 0.0}, {"eval_epsilon": 1.0})
    )
    assert greedy == usual != random


@pytest.mark.parametrize("distribution", ["none", "quantiles"])
def test_viewers_are_shown_the_value_of_the_action_that_was_chosen(tmp_path, distribution):
    kind = {"value_distribution": distribution, "v_min": -2.0, "v_max": 2.0}
    save(tmp_path, algorithm="dqn", level_name="catch", noisy=True, **kind)
    policy, judged, shown = impala_mm.load_policy(tmp_path, eval_epsilon=1.0), [], []
    judge = policy.judge

    def kept(*read):
        judged.append(judge(*read))
        return judged[-1]

    policy.judge = kept
    evaluate_level(policy, "catch", 3, 1, viewers=lambda playing: [_viewer(shown, True)])
    frames = [frame for frame in shown if frame and frame.action is not None]
    assert len(frames) == len(judged) >= 27
    expected = [one.values[0, frame.action] for one, frame in zip(judged, frames, strict=True)]
    assert [frame.value for frame in frames] == pytest.approx([float(x) for x in expected])
    best = [float(one.value[0]) for one in judged]
    assert [frame.value for frame in frames] != pytest.approx(best, abs=1e-6)


def _viewer(shown, needs_policy_output=False):
    return SimpleNamespace(
        needs_policy_output=needs_policy_output, show=shown.append, close=lambda: shown.append(None)
    )


def test_viewers_are_shown_each_observation_of_each_game_once(tmp_path):
    save(tmp_path, level_name="catch")
    shown = []
    policy = impala_mm.load_policy(tmp_path)
    result = evaluate_level(policy, "catch", 3, 1, viewers=lambda playing: [_viewer(shown)])
    assert shown.pop() is None, "it is closed"
    games = [[frame for frame in shown if frame.game == number] for number in range(3)]
    assert [len(frames) for frames in games] == [length + 1 for length in result.lengths]
    assert [frames[0].episode_return for frames in games] == [0, 0, 0]
    assert [frames[-1].episode_return for frames in games] == list(result.returns)


def _last_square(observations):
    """Take the last free square."""
    return 8 - (observations[:, ::-1] == 0).argmax(1)


def test_games_against_opponents_are_counted_by_their_results(tmp_path):
    run = tmp_path / "run"
    save(run, level_name="tests.helpers.pettingzoo_like:TicTacToe", opponents="nowhere/run,past")
    policy, said = load_policy(run), []
    result = evaluate_level(policy, policy.spec.level_name, 20, 4, say=said.append)
    assert result.options["opponents"] == "random:1"
    assert said == ["opponents play at random, since self and past play only in a training"]
    won = [sum(1 for r in result.returns if r == value) for value in (1, 0, -1)]
    assert results.count_results(result.results) == dict(
        zip(("won", "drawn", "lost"), won, strict=True)
    )
    assert sum(won) == 20
    # Two policies of one run, of which one draws actions: some games are drawn, or all are lost.
    for name in (f"{__name__}:_last_square", str(run)):
        policy = load_policy(run, opponents=name)
        level = policy.spec.level_name
        with pytest.raises(errors.BadEnvironment, match="only random may play"):
            evaluate_level(policy, level, 4, 4)
        result = impala_mm.evaluate(run, 8, num_envs=4, opponents=name)
        assert result.options["opponents"] == f"{name}:1"
        row = results.make_row(result, "test")
        assert row["won"] + row["drawn"] + row["lost"] == 8
        assert f"against {name}:1: {row['won']} won" in results.level_table(result)
    with pytest.raises(errors.ImpalaError, match=r"--opponents=nowhere/run: .*nowhere/run"):
        evaluate_level(
            load_policy(run, opponents="nowhere/run"), level, 4, 4, load_opponent=load_player
        )


def test_a_run_of_several_levels_is_asked_which(tmp_path):
    save(tmp_path, level_name="gym:CartPole-v1,CartPole-v1")
    with pytest.raises(types.BadLevel, match="trained on gym:CartPole-v1 and CartPole-v1: name"):
        impala_mm.evaluate(tmp_path)
    assert impala_mm.evaluate(tmp_path, 1, "CartPole-v1").level == "CartPole-v1"


def test_a_game_of_atari_is_whole_and_raw_and_a_film_shows_its_first(tmp_path):
    """Breakout has five lives: a training episode ends with the first."""
    pytest.importorskip("ale_py")
    save(tmp_path, level_name="BreakoutNoFrameskip-v4", num_action_repeats=12)
    policy, shown = impala_mm.load_policy(tmp_path), []
    viewers = [_viewer(shown, needs_policy_output=True)]
    result = evaluate_level(policy, "BreakoutNoFrameskip-v4", 2, 2, viewers=lambda _: viewers)
    assert min(result.lengths) > 35, "random play loses a life in some 140 frames"
    assert result.scores == (1.7, 30.5)
    assert result.idle == 0
    assert result.options["no_reward_steps"] == 0
    # Every observation of the first game: that of the reset, and one for each step.
    pictures = [frame.picture for frame in shown if frame and frame.game == 0]
    assert len(pictures) - 1 in result.lengths
    assert {picture.shape for picture in pictures} == {(210, 160, 3)}
    assert any((picture[..., 0] != picture[..., 2]).any() for picture in pictures), "in colour"


def test_a_deterministic_game_of_atari_without_reward_is_cut_and_counted(tmp_path):
    """Breakout brings no reward while the policy never fires."""
    pytest.importorskip("ale_py")
    playing = make_environments(
        "BreakoutNoFrameskip-v4", 1, seed=1, life_loss_ends=False, no_reward_steps=200
    )
    games = play_games(Plays(), playing, each_plays([1]), explore=False, idle_steps=200)
    assert [game.idle for game in games] == [True]
    assert games[0].length == 200
    save(tmp_path, level_name="BreakoutNoFrameskip-v4", no_reward_steps=7)
    stopped = evaluate_level(
        *(impala_mm.load_policy(tmp_path), "BreakoutNoFrameskip-v4", 1),
        deterministic=True,
        meanwhile=lambda games, steps: steps < 20,
    )
    assert stopped.options["no_reward_steps"] == IDLE_STEPS == 1000
    assert stopped.returns == [], "and not after 7 steps, as in training"
