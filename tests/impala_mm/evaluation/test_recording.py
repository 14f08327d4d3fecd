"""Recorded games: complete ones, as the environments showed them, also where some break."""

import numpy as np
import pytest
import tensorflow as tf
from recorded_catch import FunctionPlayer

from impala_mm.algorithms.interface import entry_spec
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.faults import make_fault
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.evaluation import recording
from impala_mm.evaluation.games import play_games
from impala_mm.replay import data_set
from impala_mm.replay.data_set import DataSetWriter, read_about, unroll_spec
from impala_mm.replay.recorded_games import RecordedGames


class _Spied:
    """Environments whose resets and steps are written down, and of which some break."""

    def __init__(self, made, breaks=()):
        self._made, self._breaks, self.seen = made, breaks, []
        self.spec, self.faults = made.spec, made.faults

    def reset(self):
        return self._note(self._made.reset(), None)

    def step(self, actions):
        return self._note(self._made.step(actions), actions)

    def _note(self, step, actions):
        if len(self.seen) in self._breaks:
            step.fault[0] = True
            step.observation[0] = 0  # as faults show it
            self.faults.append(make_fault("environment 0", ValueError("no"), 0))
        self.seen.append(tf.nest.map_structure(np.copy, (step, actions)))
        return step

    def episodes(self):
        return self._made.episodes()


def _read(games, unroll):
    """Yield the entries of each unroll; the next one overwrites them."""
    codec = UnrollCodec(unroll)
    entries = codec.arrays(np.zeros([1, codec.size], np.uint8)).entries
    entries = tf.nest.map_structure(lambda x: x[0], entries)
    for i in range(len(games)):
        games.write(i, entries)
        yield entries


def _record(folder, games, length, num_envs=3, breaks=(), meanwhile=lambda games, steps: True):
    environments = make_environments("catch", num_envs, 5)
    spied = _Spied(environments, breaks)
    step = entry_spec(environments.spec, ())
    unroll = unroll_spec(step, length)
    config = Config(level_name="catch")
    about = recording.describe(environments.spec, unroll, config, "random")
    data = DataSetWriter(folder, about)
    played = play_games(
        *(FunctionPlayer(environments.spec), spied),
        lambda environment, of_it, steps: of_it >= games,
        explore=True,
        observer=recording.Recorder(environments.spec, unroll, data),
        meanwhile=meanwhile,
    )
    data.close()
    environments.close()
    said = []
    return played, spied.seen, RecordedGames([folder], about, unroll, said.append), said, unroll


def test_the_games_are_those_that_the_environments_showed(tmp_path):
    played, seen, games, said, unroll = _record(tmp_path, 4, 7)
    assert len(played) == 12
    assert not said
    about = read_about(tmp_path)
    steps = sum(game.length for game in played)
    assert (about.episodes, about.steps) == (12, steps)
    assert about.mean_return == pytest.approx(np.mean([game.episode_return for game in played]))
    assert games.steps == steps + 3 * 3, "three resets between the games of each"
    for i, entries in enumerate(_read(games, unroll)):
        environment, number = divmod(i, len(games) // 3)
        for t in range(8):
            at = number * 7 + t
            if entries.first[t] and at > 30:
                continue  # it fills the last unroll
            step, actions = seen[at]
            np.testing.assert_array_equal(entries.observation[t], step.observation[environment])
            assert entries.reward[t] == step.reward[environment]
            assert entries.terminated[t] == step.terminated[environment]
            assert entries.first[t] == step.first[environment]
            if at:
                assert entries.action[t] == actions[environment]


@pytest.mark.parametrize("most", [100, 106, 112])
def test_an_interrupted_recording_keeps_and_counts_its_complete_games(tmp_path, most):
    played, _, games, said, unroll = _record(
        tmp_path, 100, 5, meanwhile=lambda games, steps: steps < most
    )
    assert 9 <= len(played) <= 12
    assert 80 < games.steps <= 120
    if most == 100:
        assert "ends in the middle of 3 games" in said[0]
    ends = sum(int(entries.terminated[1:].sum()) for entries in _read(games, unroll))
    assert read_about(tmp_path).episodes == ends


def test_the_last_games_are_counted_though_their_unrolls_are_written_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(data_set, "_FILE_SECONDS", -1.0)
    played, *_ = _record(tmp_path, 1, 7, num_envs=1)
    assert read_about(tmp_path).episodes == len(played) == 1


def test_nothing_of_a_first_reset_that_fails_is_recorded(tmp_path):
    _, _, games, _, unroll = _record(tmp_path, 3, 5, breaks=(0,))
    for entries in _read(games, unroll):
        assert entries.observation.any(axis=(1, 2)).all(), "each observation shows the paddle"


def test_the_unroll_of_an_environment_that_breaks_is_left_out(tmp_path):
    _, _, games, _, unroll = _record(tmp_path, 6, 5, breaks=(13, 25))
    for entries in _read(games, unroll):
        balls = entries.observation[:, :-1].sum(axis=(1, 2))
        rows = [np.argmax(frame[:-1].max(1)) for frame in entries.observation]
        for t in range(1, 6):
            if not entries.first[t] and balls[t] and balls[t - 1]:
                assert rows[t] == rows[t - 1] + 1, "a step follows the one before it"


@pytest.mark.parametrize(
    ("settings", "choices"),
    [
        ({}, ""),
        ({"discretization": "lin", "action_ratio": 7.0}, "--discretization=lin"),
        ({"discretization": "log"}, "--discretization=log --action_ratio=30.0"),
    ],
)
def test_the_description_says_which_numbers_choices_stand_for(settings, choices):
    spec, config = level_spec("catch"), Config(level_name="catch", **settings)
    about = recording.describe(spec, unroll_spec(entry_spec(spec, ()), 5), config)
    assert about.choices == choices
