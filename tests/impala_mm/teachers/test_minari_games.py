"""Recorded games become Minari's episodes, and these become the same games again."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from recorded_catch import record_games

from impala_mm.algorithms.interface import entry_spec
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.environments.make import level_spec
from impala_mm.evaluation import recording
from impala_mm.policy.core import make_entry
from impala_mm.replay.data_set import unroll_spec
from impala_mm.replay.recorded_games import RecordedGames
from impala_mm.teachers import minari_games
from impala_mm.teachers.minari_games import BadGames


class Random:
    """A player of random actions, within a policy's bounds."""

    def __init__(self, spec):
        self._spec, self._random = spec, np.random.default_rng(1)

    def initial_state(self, batch):
        return 0

    def entry(self, *fields):
        return make_entry(self._spec, *fields)

    def step(self, entry, state, explore):
        drawn = [self._draw(part, len(entry.first)) for part in self._spec.actions.leaves]
        return self._spec.actions.pack(drawn), state, ()

    def _draw(self, part, count):
        shape = [count, *part.shape]
        if not part.choices:
            return self._random.uniform(-1, 1, shape).astype(np.float32)
        numbers = self._random.integers(0, part.choices, [count, len(part.choices)])
        return numbers.reshape(shape).astype(np.int32)


def _record(level, folder, length=7, games=2, num_envs=2):
    """Record games of a level."""
    return record_games(level, Random, folder, games, length, num_envs)


def _entries(folder, level, length):
    """Return the entries of all steps and resets of a data set, without those that fill it."""
    spec = level_spec(level)
    unroll = UnrollSpec(length, 1, entry_spec(spec, ()), ())
    ours = recording.describe(spec, unroll, Config(level_name=level))
    games = RecordedGames([folder], ours, unroll, print)
    found = []
    for number in range(len(games)):
        entries = tf.nest.map_structure(
            lambda s: np.zeros([length + 1, *s.shape], s.dtype.as_numpy_dtype), unroll.step
        )
        games.write(number, entries)
        found += [
            tf.nest.map_structure(lambda x, t=t: x[t], entries)
            for t in range(0 if entries.first[0] else 1, length + 1)
        ]
    return [
        e
        for e, after in zip(found, [*found[1:], found[0]], strict=True)
        if not (e.first and after.first)
    ]


def test_games_of_a_data_set_are_read_once_each_whatever_its_unrolls(tmp_path):
    for length in (3, 7, 500):
        folder = tmp_path / str(length)
        about = _record("catch", folder, length)
        spec = level_spec("catch")
        unroll = unroll_spec(entry_spec(spec, ()), length)
        ours = recording.describe(spec, unroll, Config(level_name="catch"))
        games = list(minari_games._games(RecordedGames([folder], ours, unroll, print), unroll))
        assert [len(game.first) for game in games] == [10] * about.episodes, "9 steps each"
        for game in games:
            assert game.first.tolist() == [True] + [False] * 9
            assert game.terminated.tolist() == [False] * 9 + [True]
            np.testing.assert_array_equal(game.reward[:-1], 0)
            assert abs(game.reward[-1]) == 1


PLAIN = """
from sandbox.own_spaces import Panel

class Plain(Panel):
    def _show(self):
        return super()._show()[0], {}
"""
LEVELS = ["catch", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "plain_panel:Plain"]


@pytest.mark.parametrize("level", LEVELS)
def test_minari_itself_reads_what_is_exported_and_it_comes_back_equal(level, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "plain_panel.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(tmp_path)
    about = _record(level, tmp_path / "games")
    minari_games.main(["export", str(tmp_path / "games"), "test/random-v0"])
    found = minari.load_dataset("test/random-v0")
    assert (found.total_episodes, found.total_steps) == (about.episodes, about.steps)
    for episode in found.iterate_episodes():
        ends = np.stack([episode.terminations, episode.truncations])
        seen, chosen = (tf.nest.flatten(x)[0] for x in (episode.observations, episode.actions))
        assert len(seen) == len(episode.rewards) + 1 == len(chosen) + 1
        assert not ends[:, :-1].any()
        assert ends[:, -1].sum() == 1
        for t in range(len(episode)):
            action = tf.nest.map_structure(lambda x, t=t: x[t], episode.actions)
            assert found.action_space.contains(action)
    again = minari_games.import_games("test/random-v0", tmp_path / "again", level_name=level)
    assert (again.steps, again.episodes) == (about.steps, about.episodes)
    assert again.mean_return == pytest.approx(about.mean_return)
    one, other = (_entries(tmp_path / name, level, 11) for name in ("games", "again"))
    assert len(one) == len(other)
    same = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(one, other, strict=True):
        pair = (ours, theirs)
        if ours.first:  # its action was ignored
            pair = [each._replace(action=0) for each in pair]
        tf.nest.map_structure(same, *pair)


def test_an_environments_own_observations_are_converted_and_bad_ones_refused(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    buffer = minari.data_collector.EpisodeBuffer(
        observations=np.array([0, 4, 8]), actions=np.array([1, 2]), rewards=[0.0, 1.0],
        terminations=[False, False], truncations=[False, False],
    )  # fmt: skip
    minari.create_dataset_from_buffers("lake-v0", [buffer], env="FrozenLake-v1")
    about = minari_games.import_games("lake-v0", tmp_path / "lake")
    assert (about.level, about.steps, about.mean_return) == ("FrozenLake-v1", 2, 1.0)
    entries = _entries(tmp_path / "lake", "FrozenLake-v1", 5)
    assert [int(e.observation.argmax()) for e in entries] == [0, 4, 8]
    assert [bool(e.truncated) for e in entries] == [False, False, True], "the recording was cut"
    for name, flags, sentence in (
        ("lake-v0", {"level_name": "CartPole-v1"}, "takes 2: name the level"),
        ("lake-v0", {"level_name": "Taxi-v3"}, "has masks of its actions"),
        ("none-v0", {}, "none-v0 cannot be read: Dataset none-v0 not found"),
    ):
        with pytest.raises(BadGames, match=sentence):
            minari_games.import_games(name, tmp_path / "no", **flags)


def test_without_minari_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"impala_mm\[minari\]"):
        minari_games.main(["import", "a-v0", str(tmp_path / "x")])
