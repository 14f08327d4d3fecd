"""Environments whose agents act at the same time: the columns of agents that end, join and fail."""

import numpy as np
import pytest
from pettingzoo_like import Meeting

from impala_mm.environments.check import LevelCheck
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.types import BadLevel, Episode, Options

MEETING = "tests.helpers.pettingzoo_like:Meeting"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_agent_is_a_column_while_it_plays(workers):
    """Agents end after 2, 3 and 4 steps; the last one joins after the first step."""
    environments = make_environments(MEETING, 2, seed=0, workers=workers)
    assert (environments.spec.agents, environments.spec.seats) == (3, 1)
    expected = [
        # the columns of one environment: (observed, first, reward, terminated)
        [("00", True, 0, False), ("10", True, 0, False), (None, True, 0, False)],
        [("01", False, 1, False), ("11", False, 2, False), ("21", True, 0, False)],
        [("02", False, 1, True), ("12", False, 2, False), ("22", False, 0, False)],
        [(None, True, 0, False), ("13", False, 2, True), ("23", False, 0, False)],
        [(None, True, 0, False), (None, True, 0, False), ("24", False, 0, True)],
    ]
    step = environments.reset()
    for lap in range(2):
        for t, columns in enumerate(expected):
            for k in range(6):
                seen, first, reward, terminated = columns[k % 3]
                numbers = [0, 0] if seen is None else [int(digit) for digit in seen]
                where = lap, t, k
                assert step.observation[k].tolist() == numbers, where
                assert (step.first[k], step.reward[k]) == (first, reward), where
                assert (step.terminated[k], step.truncated[k]) == (terminated, False), where
            assert not step.fault.any()
            step = environments.step(np.array([1, 2, 0] * 2, np.int32))
        # The sums of rewards and the lengths of the agents, and of the game the mean and longest.
        agents = {(0, 2.0, 2), (1, 6.0, 3), (2, 0.0, 3)}
        ended = environments.episodes()
        expected_ends = {Episode(k + 3 * n, False, r, s) for n in (0, 1) for k, r, s in agents}
        assert expected_ends | {Episode(3 * n, True, 8 / 3, 3) for n in (0, 1)} == set(ended)
        assert len(ended) == 8
    environments.close()
    cut = make_environments(MEETING, 1, seed=0, env_kwargs='{"truncates": true}')
    cut.reset()
    assert [cut.step(np.zeros(3, np.int32)).truncated.tolist() for _ in range(2)][1] == [True, 0, 0]


def test_a_fault_breaks_all_columns_of_an_environment_and_is_counted_once():
    environments = make_environments(MEETING, 2, seed=0, env_kwargs='{"fails_at": 2}')
    environments.reset()
    actions = np.ones(6, np.int32)
    environments.step(actions)
    inner = environments._environments[3]
    inner.environment._fails_at = 0  # the second one goes on
    step = environments.step(actions)
    assert step.fault.tolist() == step.first.tolist() == [True] * 3 + [False] * 3
    (fault,) = environments.faults
    assert fault.text == f"environment 0 of {MEETING}: RuntimeError: the meeting is cancelled"
    opens, environments._open_one = environments._open_one, None  # it cannot be called
    assert environments.step(actions).fault.tolist() == [True] * 3 + [False] * 3
    assert environments.faults[1].text.startswith(f"environment 0 of {MEETING}: TypeError: ")
    environments._open_one = opens
    while (step := environments.step(actions)).fault.any():
        assert len(environments.faults) == 2
    assert step.observation[:3].tolist() == [[0, 0], [1, 0], [0, 0]]
    assert step.first[:3].all()
    step = environments.step(actions)
    assert not step.fault.any()
    assert step.first.tolist()[:3] == [False, False, True], "the third joins"
    assert step.observation[:3].tolist() == [[0, 1], [1, 1], [2, 1]]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("Unequal", {}, r"actions of a and c differ \(Discrete\(3\) and Discrete\(4\)\).*pad_act"),
        ("Meeting", {"num_action_repeats": 2}, "has several agents: leave it 0"),
    ],
)
def test_what_one_policy_cannot_play_is_refused(name, options, told):
    with pytest.raises(BadLevel, match=told):
        level_spec(f"tests.helpers.pettingzoo_like:{name}", **options)


class Lacking(Meeting):
    """A meeting that forgets an agent."""

    def step(self, actions):
        """Return no reward of the first agent in the second step."""
        seen, rewards, *rest = super().step(actions)
        if self._steps == 2:
            del rewards["b"]
        return seen, rewards, *rest


class Nan(Meeting):
    """A meeting in which an agent sees what is no number."""

    def _look(self, agents=None):
        seen = super()._look(agents)
        if self._steps == 3:
            seen["b"][1] = np.nan
        return seen


class Masked(Meeting):
    """A meeting in which an agent may choose its own number alone."""

    def reset(self, seed=None, options=None):
        """Begin with masks."""
        seen, infos = super().reset(seed)
        return seen, {agent: self._mask(agent) for agent in infos}

    def step(self, actions):
        """Return masks for all who see something."""
        seen, *rest, _ = super().step(actions)
        return seen, *rest, {agent: self._mask(agent) for agent in seen}

    def _mask(self, agent):
        return {"action_mask": np.arange(3) == self.possible_agents.index(agent)}


def test_each_agent_has_its_own_mask():
    environments = make_environments(f"{__name__}:Masked", 1, seed=0)
    step, choices = environments.reset(), []
    for _ in range(5):
        choices.append([np.flatnonzero(mask).tolist() for mask in step.mask])
        step = environments.step(step.mask.argmax(1).astype(np.int32))
        assert not step.fault.any(), environments.faults
    every = [0, 1, 2]
    assert choices == [
        [[0], [1], every],  # the third is absent
        [[0], [1], [2]],
        [every, [1], [2]],  # the first has ended
        [every, every, [2]],
        [every, every, every],
    ]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Lacking, "step 2 raised ValueError: step returned no reward of the agent 'b'"),
        (Nan, "step 3 returned observation with NaN or infinity"),
        (Meeting, ""),
        (Masked, ""),
    ],
)
def test_the_check_names_what_is_wrong_with_an_agent(kind, told):
    found = []
    name = f"{kind.__module__}:{kind.__name__}"
    check = LevelCheck(name, Options(), lambda what, steps: None, found.append)
    assert check.run(until=float("inf"))
    assert len(found) == bool(told), found
    assert told in "".join(finding.sentence for finding in found)
