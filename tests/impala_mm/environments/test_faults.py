"""What a user reads of a fault: their own lines, once, and how often it came again."""

import gymnasium
import numpy as np
import pettingzoo_like
import pytest
from counting import level

from impala_mm.environments import faults
from impala_mm.environments.faults import FaultLog
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import Fault


class Maze(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    result = None

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return self.result or self._walk(action)

    def _walk(self, action):
        return self.no_such_map[action]


def _fault(monkeypatch, result=None, limit=None):
    monkeypatch.setattr(Maze, "result", result)
    envs = make_environments(level(Maze, max_episode_steps=limit), 1, seed=0)
    envs.reset()
    envs.step(np.zeros(1, np.int64))
    [fault] = envs.faults
    return fault


@pytest.mark.parametrize("limit", [None, 100])
def test_the_traceback_begins_at_the_users_code(monkeypatch, limit):
    fault = _fault(monkeypatch, limit=limit)
    _, place, line, *_ = fault.traceback.splitlines()
    assert place == f'  File "{__file__}", line {Maze.step.__code__.co_firstlineno + 1}, in step'
    assert line == "    return self.result or self._walk(action)"
    assert fault.traceback.endswith("AttributeError: 'Maze' object has no attribute 'no_such_map'")
    where = Maze._walk.__code__.co_firstlineno + 1
    assert fault.kind == f"AttributeError at {__file__}:{where}"


GOOD = np.zeros(2, np.float32)


@pytest.mark.parametrize("limit", [None, 100])
@pytest.mark.parametrize(
    ("result", "text"),
    [
        ((GOOD, 1.0, False), "step must return (observation, reward, terminated, truncated, "),
        ((np.zeros(3), 1.0, False, False, {}), "observation of shape [3]"),
        ((GOOD, float("nan"), False, False, {}), "reward nan"),
    ],
)
def test_a_wrong_result_names_the_place_of_the_function(monkeypatch, limit, result, text):
    fault = _fault(monkeypatch, result, limit)
    assert text in fault.text
    line = Maze.step.__code__.co_firstlineno
    assert fault.traceback == f'returned by File "{__file__}", line {line}, in step'


class Unpaid(pettingzoo_like.Meeting):
    def step(self, actions):
        seen, _, *rest = super().step(actions)
        return seen, {}, *rest


class Unread(pettingzoo_like.Bidding):
    def step(self, action):
        super().step(action)
        if len(self.bids) == 2:  # the policy's
            self.rewards = None


@pytest.mark.parametrize("kind", [Unpaid, Unread])
def test_a_wrong_result_of_several_agents_names_the_place_of_the_function(kind):
    envs = make_environments(f"{__name__}:{kind.__name__}", 1, seed=0)
    first = envs.reset()
    if not envs.faults:
        envs.step(envs.spec.actions.zeros(len(first.first)))
    line = kind.step.__code__.co_firstlineno
    assert envs.faults[0].traceback == f'returned by File "{__file__}", line {line}, in step'


def test_the_first_fault_of_each_kind_is_shown_and_later_ones_are_counted(monkeypatch):
    said, told = [], []
    log = FaultLog(said.append, told.append)
    for _ in range(38):
        log.add(Fault("environment 0: E: bad", "E at a.py:1", "Traceback\n  File a"), "it goes")
    log.add(Fault("environment 1: E: bad", "E at a.py:2", "Traceback\n  File b"), "it goes")
    log.say_counts()
    assert [line.splitlines()[0] for line in said] == [
        f"environment {number}: E: bad; it goes" for number in (0, 1)
    ]
    assert said[0].endswith("\n  Traceback\n    File a")
    assert len(told) == 2
    monkeypatch.setattr(faults, "_COUNT_SECONDS", 0.0)
    log.say_counts()
    log.say_counts(now=True)
    assert said[2:] == ["... 37 more faults of this kind: environment 0: E: bad"]
