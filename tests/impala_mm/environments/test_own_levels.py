"""Our own levels: returns of the best policy, of a poor one, and of one without memory."""

import numpy as np
import pytest

from impala_mm.environments.make import make_environments
from impala_mm.environments.types import BadLevel


def _mean_return(name, policy, games=400, num_envs=20, **options):
    """Return the mean return of whole games; the policy maps a Step to actions [E]."""
    envs = make_environments(name, num_envs, seed=0, **options)
    step, returns = envs.reset(), []
    while len(returns) < games:
        step = envs.step(policy(step))
        returns += [e.episode_return for e in envs.episodes() if e.whole_game]
    assert envs.faults == []
    return np.mean(returns), envs.spec.reward_threshold


def test_the_optimal_policy_always_catches():
    def follow(step):
        ball = step.observation[:, :-1].sum(1).argmax(1)
        paddle = step.observation[:, -1].argmax(1)
        return 1 + np.sign(ball - paddle)

    mean, threshold = _mean_return("catch", follow)
    assert mean == 1 > threshold


def test_a_game_of_catch_as_seen():
    envs = make_environments("catch", 1, seed=0)
    board = envs.reset().observation[0].copy()
    assert board[0].sum() == 1
    assert board[-1].tolist() == [0, 0, 1, 0, 0]
    for t in range(1, 10):
        step = envs.step(np.array([0]))
        assert step.terminated[0] == (t == 9)
        assert (step.observation[0, t] >= board[0]).all(), "the ball falls straight"
        assert step.observation[0, -1].argmax() == max(0, 2 - t)
        assert abs(step.reward[0]) == (t == 9)


def test_only_the_first_observation_shows_the_cue():
    envs = make_environments("memory", 20, seed=0)
    cues = envs.reset().observation.copy()
    assert {tuple(cue) for cue in cues} == {(1, 0, 0, 0), (0, 1, 0, 0)}
    answer, at_clear = np.arange(20) % 2, np.arange(20) // 2 % 2
    for t in range(1, 11):
        step = envs.step(at_clear if t == 9 else answer)
        due = {8: [0, 0, 1, 0], 9: [0, 0, 0, 1]}.get(t, [0, 0, 0, 0])
        assert (step.observation == due).all()
        assert (step.terminated == (t == 10)).all()
    assert (step.reward == ((cues[:, 1] == answer) & (at_clear == 0))).all()


def test_a_walk_through_the_t_maze_as_seen():
    envs = make_environments("tmaze", 20, seed=0, env_kwargs='{"length": 3}')
    signs = envs.reset().observation.copy()
    assert {tuple(sign) for sign in signs} == {(1, 0, 0, 0), (0, 1, 0, 0)}
    # A turn in the corridor, and a walk ahead at the junction, are bumps.
    walk = [(1, signs, -0.05), (0, [0, 0, 1, 0], 0), (2, [0, 0, 1, 0], -0.05)]
    walk += [(0, [0, 0, 1, 0], 0), (0, [0, 0, 0, 1], 0), (0, [0, 0, 0, 1], -0.05)]
    for action, shown, reward in walk:
        step = envs.step(np.full(20, action))
        assert (step.observation == shown).all()
        assert step.reward == pytest.approx(reward)
        assert not (step.terminated | step.truncated).any()
    step = envs.step(np.full(20, 2))
    assert step.terminated.all()
    assert (step.reward == (signs[:, 1] == 1)).all()


def test_a_walk_through_the_t_maze_that_never_ends_is_truncated():
    envs = make_environments("tmaze", 1, seed=0, env_kwargs='{"length": 2}')
    envs.reset()
    ends = [bool(envs.step(np.array([1])).truncated[0]) for _ in range(12)]
    assert ends == [False] * 11 + [True]


def test_a_t_maze_without_a_corridor_is_refused():
    with pytest.raises(BadLevel, match="length is 0, and must be at least 1"):
        make_environments("tmaze", 1, seed=0, env_kwargs='{"length": 0}')
