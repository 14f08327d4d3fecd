"""Opponents that are an actor's own policies: the newest one, and those that it had earlier."""

import numpy as np
import pytest
import tensorflow as tf
from in_process import make

from impala_mm.actor.acting import Act
from impala_mm.actor.actor import UnrollPlayer
from impala_mm.actor.opponents import OpponentSettings
from impala_mm.config.environment_flags import read_opponents
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments.make import make_environments
from impala_mm.environments.opponents import RememberingPlayer
from impala_mm.environments.types import Step

BIDDING = "tests.helpers.pettingzoo_like:Bidding"


def _settings(text, *restored):
    return OpponentSettings(read_opponents(text), lambda name, entries: None, 1, *restored)


class _Version(int):
    version = property(int)


def _bias(algorithm):
    (bias,) = [v for v in algorithm.variables.trained if v.name == "policy_logits/b:0"]
    return bias


@pytest.mark.parametrize("by_numpy", [True, False])
def test_a_frozen_policy_keeps_its_values(by_numpy, monkeypatch):
    if not by_numpy:
        monkeypatch.setattr("impala_mm.actor.acting._by_numpy", lambda *_: None)
    algorithm = make(Config(level_name=BIDDING))
    act, bias = Act(algorithm, 4), _bias(algorithm)
    zeros = [np.zeros([4, *s.shape], s.dtype.as_numpy_dtype) for s in (algorithm.unroll.step[4],)]
    entry = Entry(np.zeros(4, np.int32), np.zeros(4, np.float32), None, None, zeros[0], None, None)
    entry = entry._replace(first=np.ones(4, bool), mask=())
    number = [tf.range(4), tf.constant(4)]

    def bids(play):
        return set(np.ravel([play(entry, [], number)[0] for _ in range(5)]).tolist())

    def prefer(action):
        bias.assign(100 * tf.one_hot(action, 5))
        act.read_variables()

    prefer(3)
    frozen = act.frozen()
    prefer(1)
    later = act.frozen()
    assert (act.by_numpy, frozen.by_numpy) == (by_numpy, by_numpy)
    assert (bids(act), bids(frozen), bids(later)) == ({1}, {3}, {1})
    prefer(4)
    assert (bids(act), bids(frozen), bids(later)) == ({4}, {3}, {1})


@pytest.mark.parametrize("groups", [1, 2])
def test_the_newest_policy_plays_and_past_ones_do(groups):
    """The policy of version v bids v; the results of games say what their opponents have bid."""
    algorithm = make(Config(level_name=BIDDING, unroll_length=6))
    for variable in algorithm.variables.trained:
        variable.assign(tf.zeros_like(variable))
    vectors = [(make_environments(BIDDING, 8, seed=k), 8) for k in range(groups)]
    player = UnrollPlayer(algorithm, vectors, opponents=_settings("self:0.5,past:0.5"))
    newest = 0

    def load():
        _bias(algorithm).assign(100 * tf.one_hot(newest, 5))
        return newest

    games = []
    for newest in (1, 3, 4):
        for lap in range(5):
            player.play(lambda: _Version(load()))
            rows = player.episodes()
            if lap > 1:  # games that began under an earlier policy have ended
                games += [(newest, *row[4:]) for row in rows.tolist() if row[1]]
    player.close()
    by_policy = {n: {(int(o), score) for v, o, score in games if v == n} for n in (1, 3, 4)}
    self_play = (-2, 0.5)
    assert by_policy[1] == {self_play, (1, 0.5)}
    assert by_policy[3] == {self_play, (1, 1.0), (3, 0.5)}
    assert by_policy[4] == {self_play, (1, 1.0), (3, 1.0), (4, 0.5)}


def test_the_policies_that_the_run_has_saved_are_in_the_pool_from_the_start():
    algorithm = make(Config(level_name=BIDDING, unroll_length=12))
    for variable in algorithm.variables.trained:
        variable.assign(tf.zeros_like(variable))

    def restore(variables):
        for version in (1, 2):
            _bias(algorithm).assign(100 * tf.one_hot(version, 5))
            yield version

    def load():
        _bias(algorithm).assign(100 * tf.one_hot(4, 5))
        return _Version(4)

    vectors = [(make_environments(BIDDING, 8, seed=0), 8)]
    player = UnrollPlayer(algorithm, vectors, opponents=_settings("past", restore))
    player.play(load)
    games = {tuple(row[4:]) for row in player.episodes().tolist() if row[1]}
    player.close()
    assert games == {(1, 1.0), (2, 1.0), (4, 0.5)}


def test_random_opponents_of_groups_draw_actions_of_their_own():
    algorithm = make(Config(level_name=BIDDING, unroll_length=12))
    _bias(algorithm).assign(100 * tf.one_hot(2, 5))
    vectors = [(make_environments(BIDDING, 8, seed=k), 8) for k in range(2)]
    player = UnrollPlayer(algorithm, vectors, opponents=_settings("random"))
    player.play()
    answers = [environments._answers.tolist() for environments, _ in vectors]
    player.close()
    assert answers[0] != answers[1]


def test_an_opponent_with_a_memory_remembers_each_game_of_its_own():
    """Entries of 4 games come in turn; each game has the states that it has when played alone."""
    algorithm = make(Config(level_name=BIDDING, agent_name="MLPLSTMAgent"))
    random, number = np.random.default_rng(0), [tf.range(4), tf.constant(4)]
    act, alone = Act(algorithm, 4), Act(algorithm, 1)

    def player(play, size):
        begin = tf.nest.flatten(algorithm.initial_state(size))

        def choose(asked, actions, state):
            seen = asked.observation, asked.first
            entry = Entry(actions, asked.reward, None, None, *seen, None, ())
            chosen, after, _ = play(
                entry, state, [tensor[:size] for tensor in number[:1]] + number[1:]
            )
            return chosen, after

        return RememberingPlayer(choose, begin)

    together, single = player(act, 4), [player(alone, 1) for _ in range(4)]
    no = np.zeros(4, bool)
    for t in range(12):
        observation = random.normal(size=(4, 3)).astype(np.float32)
        reward, first = random.normal(size=4).astype(np.float32), random.random(4) < 0.3
        first |= t == 0
        actions = random.integers(5, size=4).astype(np.int32)
        step = Step(reward, no, no, observation, first, no)
        rows = np.flatnonzero(random.random(4) < 0.6) if t else np.arange(4)
        together.act(step, actions, rows)
        for row in rows.tolist():
            one = Step(*(part[row : row + 1] for part in step[:6]))
            single[row].act(one, actions[row : row + 1], np.arange(1))
        for row in range(4):
            for kept, own in zip(together._state, single[row]._state, strict=True):
                np.testing.assert_allclose(kept[row], own[0], rtol=1e-4, atol=1e-6)
    assert any(np.abs(part).max() > 0.01 for part in together._state)
