"""Environments whose agents take turns: what the policy and its opponents see, and who they are."""

import numpy as np
import pytest
from pettingzoo_like import Bidding, NoMasks, TicTacToe

from impala_mm.config import flags
from impala_mm.config.environment_flags import opponents_text
from impala_mm.config.errors import BadSettings
from impala_mm.config.settings import Config
from impala_mm.environments import from_flags
from impala_mm.environments.agents import AgentSpaces, TurnGame
from impala_mm.environments.check import LevelCheck
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.opponents import DrawnOpponents, PastPolicies, RandomPlayer
from impala_mm.environments.types import Options
from impala_mm.records.ratings import OpponentRatings

LEVEL = "tests.helpers.pettingzoo_like:"


class Scripted:
    """Opponents that bid their agent's number, or take the lowest free square; it records."""

    def __init__(self):
        self.seen, self.begun, self.ended = [], [], []

    def begin(self, environment):
        self.begun.append(environment)

    def act(self, asked, actions, rows):
        for row in rows.tolist():
            first, reward = bool(asked.first[row]), float(asked.reward[row])
            self.seen.append((row, asked.observation[row].tolist(), first, reward, actions[row]))
        masked = isinstance(asked.mask, np.ndarray)
        return np.array(asked.mask.argmax(1) if masked else asked.observation[:, 0], np.int32)

    def end(self, environment, score):
        self.ended.append((environment, score))
        return 7


def test_opponents_play_the_other_agents_and_see_their_own_entries():
    """Three agents bid twice each; the policy bids 4 in the first game of each environment."""
    environments = make_environments(LEVEL + "Bidding", 2, seed=0)
    assert (environments.spec.agents, environments.spec.seats) == (1, 3)
    opponents = environments.opponents = Scripted()
    step = environments.reset()
    assert opponents.begun == [0, 1]
    # The policy is b in environment 0, and c in environment 1.
    assert step.first.all()
    assert step.observation.tolist() == [[1, 0, 1], [2, 1, 2]]
    step = environments.step(np.array([4, 4], np.int32))
    assert step.observation.tolist() == [[1, 0, 4], [2, 1, 5]], "after c, a; and after a, b"
    assert not step.reward.any()
    assert not step.first.any()
    assert not step.terminated.any()
    step = environments.step(np.array([4, 0], np.int32))
    assert step.reward.tolist() == [1, 1], "8 are more than 0 and 4; 4 are more than 0 and 2"
    assert step.terminated.all()
    assert step.observation.tolist() == [[1, 2, 6], [2, 0, 6]], "what the game came to"
    assert opponents.ended == [(0, 1.0), (1, 1.0)]
    games = [episode for episode in environments.episodes() if episode.whole_game]
    assert [game[2:] for game in games] == [(1.0, 2, 7, 1.0)] * 2
    # By environment, of which each has a row for the agent after the policy's and the one after it.
    agents = {0: 2, 1: 0, 2: 0, 3: 1}
    assert {row: seen[0] for row, seen, *_ in opponents.seen} == agents
    own = {row: [rest for each, *rest in opponents.seen if each == row] for row in agents}
    for row, agent in agents.items():
        entries = own[row]
        assert [first for _, first, _, _ in entries] == [True, False], row
        assert [last for *_, last in entries] == [0, agent], "its own last action"
    # The policy is c in environment 0, and a in environment 1, which begins.
    step = environments.step(np.array([0, 0], np.int32))
    assert step.first.all()
    assert step.observation.tolist() == [[2, 1, 2], [0, 0, 0]]
    assert opponents.begun == [0, 1, 0, 1]


def test_masks_rewards_and_results_are_those_of_the_agent():
    environments = make_environments(LEVEL + "TicTacToe", 1, seed=0)
    assert environments.spec.observation.shape == [9], "without the mask, and without a Dict"
    opponents = environments.opponents = Scripted()
    step = environments.reset()
    seen = []
    for action in (4, 5, 8, 0, 6, 7, 1):  # as o: two rows of x are lost; as x: 6, 7, 8 would win
        seen.append((step.observation[0].tolist(), float(step.reward[0]), bool(step.terminated[0])))
        assert (step.mask[0] == (step.observation[0] == 0)).all() or step.terminated[0]
        step = environments.step(np.array([action], np.int32))
    lost = [-1, -1, -1, 0, 1, 1, 0, 0, 0]
    assert seen[0] == ([-1, 0, 0, 0, 0, 0, 0, 0, 0], 0, False)
    assert seen[2] == (lost, -1, True) or seen[3] == (lost, -1, True), seen
    assert opponents.ended[0] == (0, 0.0)
    assert all(reward == 0 for *_, reward, _ in opponents.seen), "until a game ends"


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_fault_in_anybodys_turn_breaks_its_environment(fails_at):
    environments = make_environments(
        LEVEL + "Bidding", 2, seed=0, env_kwargs=f'{{"fails_at": {fails_at}}}'
    )
    environments._environments[1].environment._fails_at = 0
    step = environments.reset()
    step = step if step.fault.any() else environments.step(np.zeros(2, np.int32))
    assert step.fault.tolist() == [True, False]
    assert environments.faults[0].text.startswith(f"environment 0 of {LEVEL}Bidding: RuntimeError")
    if fails_at == 1:  # an opponent bids first
        assert environments.step(np.zeros(2, np.int32)).fault.tolist() == [True, False]
        assert environments.faults[1].text == environments.faults[0].text
    failing = Bidding(fails_at=1)
    failing.reset = None
    environments._open_one = lambda renders: TurnGame(failing, AgentSpaces("", Bidding()))
    for _ in range(4):
        assert environments.step(np.zeros(2, np.int32)).fault.tolist() == [True, False]
    assert "TypeError" in environments.faults[-1].text
    environments._open_one = lambda renders: TurnGame(Bidding(), AgentSpaces("", Bidding()))
    for _ in range(8):
        step = environments.step(np.zeros(2, np.int32))
        if not step.fault.any():
            break
    assert step.first[0]
    assert not environments.step(np.zeros(2, np.int32)).fault.any()


def test_random_opponents_take_what_is_allowed_with_equal_chances():
    spec = level_spec(LEVEL + "TicTacToe")
    asked = make_environments(LEVEL + "TicTacToe", 4, seed=0).asked
    asked.mask[:] = np.arange(9) % 3 == 1
    player = RandomPlayer(spec.actions, seed=1)
    drawn = [player.act(asked, None, np.arange(4)) for _ in range(300)]
    counts = np.bincount(np.ravel(drawn), minlength=9)
    assert counts.sum() == 1200
    assert set(np.flatnonzero(counts)) == {1, 4, 7}
    assert counts[[1, 4, 7]].min() > 330


def test_games_against_the_first_random_opponents_are_counted_as_theirs():
    """These are the opponents of environments that step in worker processes."""
    environments, ratings = (
        make_environments(LEVEL + "Bidding", 8, seed=0),
        OpponentRatings(["random"]),
    )
    environments.reset()
    for _ in range(9):
        environments.step(np.full(8, 4, np.int32))
    for game in environments.episodes():
        ratings.add(game.opponent, game.score)
    row = ratings.row()
    assert row["score/random"] > 0.5
    assert row["elo"] > 0


def test_past_policies_are_spread_over_the_run_and_the_hard_ones_are_drawn():
    past = PastPolicies(most=4)
    assert past.draw(np.random.default_rng(0)) is None
    for version in range(21):
        past.offer(version, lambda version=version: version)
    assert list(past.members) == [0, 8, 16], "every 8th since there are more than 4 of each 4th"
    for version, score in ((0, 1.0), (8, 0.5), (16, 0.0)):
        for _ in range(200):
            past.count(version, score)
    past.count(3, 1.0)  # it was dropped
    random = np.random.default_rng(0)
    drawn = [past.draw(random)[0] for _ in range(4000)]
    shares = [drawn.count(version) / 4000 for version in (0, 8, 16)]
    np.testing.assert_allclose(shares, np.array([0, 0.25, 1]) / 1.25, atol=0.03)


def test_each_game_draws_an_opponent_by_the_weights():
    class Always:
        def __init__(self, action):
            self._action = action

        def act(self, asked, actions, rows):
            return np.full(len(asked.reward), self._action, np.int32)

    environments = make_environments(LEVEL + "Bidding", 50, seed=0)
    players = {"self": Always(0), "random": Always(4)}
    weights = {"self": 1.0, "past": 1.0, "random": 2.0}
    past = PastPolicies()
    environments.opponents = DrawnOpponents(weights, players, 3, past, others=2)
    environments.reset()
    for number in range(2):
        for _ in range(12):
            environments.step(np.full(50, 2, np.int32))
        games = [e for e in environments.episodes() if e.whole_game]
        assert len(games) > 150
        by_number = {n: {g.score for g in games if g.opponent == n} for n in (-2, -3, -4, 30)}
        if number == 0:  # without a past policy the newest plays
            assert by_number == {-2: {1.0}, -3: {1.0}, -4: {0.0}, 30: set()}
            past.offer(30, lambda: Always(2))
            assert abs(sum(g.opponent == -4 for g in games) / len(games) - 0.5) < 0.15
    assert 0.5 in by_number[30], "it bids as much"
    assert past.members[30].results[0] / past.members[30].results[1] == 0.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("self:x,past", None),
        ("self:0", "'self:0' must be a name and a weight above 0"),
        ("self,self:2", "names self twice"),
        (" ,", "must name an opponent"),
    ],
)
def test_the_opponents_of_the_flag(text, told):
    assert opponents_text("my_module:lean, self:0.25") == "my_module:lean:1,self:0.25"
    if told is None:
        assert opponents_text(text) == "self:x:1,past:1"
        return
    with pytest.raises(ValueError, match=told):
        opponents_text(text)


class Alone(TicTacToe):
    """A game for one."""

    possible_agents = ["x"]  # noqa: RUF012


class Blind(NoMasks):
    """A game in which the second agent sees too much."""

    def observe(self, agent):
        """Return a board that is too large."""
        seen = super().observe(agent)
        return seen if agent == "x" else np.append(seen, 0)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (TicTacToe, ""),
        (Bidding, ""),
        (Alone, "possible_agents names x alone"),
        (Blind, "observation of shape [10], and its space has the shape [9]"),
    ],
)
def test_the_check_names_what_is_wrong(kind, told):
    found = []
    name = f"{kind.__module__}:{kind.__name__}"
    assert LevelCheck(name, Options(), lambda what, steps: None, found.append).run(float("inf"))
    assert len(found) == bool(told), found
    assert told in "".join(finding.sentence for finding in found)


def test_opponents_need_agents_that_take_turns():
    with pytest.raises(BadSettings, match="leave it out"), flags.refusals_raised():
        from_flags.level_specs(Config(level_name="catch", opponents="random:1"))
