"""Batches of recorded games: what they contain, who gets which, and what follows them."""

import numpy as np
import pytest
import tensorflow as tf
from recorded_catch import record_catch

from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.make import level_spec
from impala_mm.learner.sources.batch_source import BatchSource
from impala_mm.learner.sources.recorded import (
    OfflineSource,
    PhasedSource,
    all_unrolls,
    entries_before,
)
from impala_mm.replay.recorded_games import RecordedGames

LENGTH, COLUMNS = 6, 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games")
    about = record_catch(folder, 4, 8)
    config = ImpalaSettings(level_name="catch", unroll_length=LENGTH)
    algorithm = make_algorithm(config, level_spec("catch"))
    return algorithm, RecordedGames([folder], about, algorithm.unroll, print)


def _take(recorded, batches, **options):
    algorithm, games = recorded
    source = OfflineSource(games, algorithm, COLUMNS, batches, [3], **options)
    return [source.next(30.0) for _ in range(batches)], source


def _columns(batches):
    """Return each column's observations as bytes."""
    entries = [batch.unrolls.observation.numpy() for batch in batches]
    return [each[:, b].tobytes() for each in entries for b in range(each.shape[1])]


def test_every_unroll_comes_once_in_each_pass_and_no_batch_follows_the_last(recorded):
    _, games = recorded
    assert len(games) == 3 * 7
    batches, source = _take(recorded, 14)
    columns = _columns(batches)
    assert sorted(columns[:21]) == sorted(columns[21:])
    assert columns[:21] != columns[21:], "each pass has an order of its own"
    assert source.next(0.1) is None


def test_a_batch_holds_what_was_recorded_and_the_initial_state(recorded):
    algorithm, _ = recorded
    (batch,), _ = _take(recorded, 1)
    assert batch.unrolls.reward.shape == (LENGTH + 1, COLUMNS)
    assert not np.any(batch.fresh)
    assert not np.any(batch.played)
    assert np.all(batch.weight.numpy() == 1)
    assert np.all(batch.key.numpy() == -1)
    assert not np.any(batch.unrolls.extras.numpy())
    tf.nest.assert_same_structure(batch.start, algorithm.unroll.start)
    assert np.all(batch.unrolls.observation.numpy()[0].sum(axis=(1, 2)) == 2), "ball and paddle"
    assert batch.unrolls.first.device.endswith("CPU:0")


def test_an_unroll_begins_with_the_frames_before_it(tmp_path):
    """So its first steps count, too, and none has frames of another game."""
    about = record_catch(tmp_path, 4, 8)
    config = Config.of_algorithm("dqn")(level_name="catch", unroll_length=4, n_steps=2)
    student = make_algorithm(config, level_spec("catch")._replace(frame_stack=3))
    earlier = entries_before(student, 3)
    assert earlier == 2
    games = RecordedGames([tmp_path], about, student.unroll, print, earlier)
    blocks = []
    held = all_unrolls(games, student, (0, 1), lambda: blocks.append(1))
    assert blocks == [1], "the heartbeat continues"
    source = OfflineSource(games, student, COLUMNS, 1, [3])
    spec, found = student.unroll, {}
    codec = UnrollCodec(spec._replace(overlap=spec.overlap + 2, start=()))
    for number in range(len(games)):
        entries = codec.arrays(np.zeros([1, codec.size], np.uint8)).entries
        entries = tf.nest.map_structure(lambda x: x[0], entries)
        games.write(number, entries)
        before, first = entries.observation[:2], entries.first
        older = np.zeros_like(before[0]) if first[1] else before[0]
        expected = np.concatenate([older, before[1]], -1)
        np.testing.assert_array_equal(held.start.frames[number], expected)
        np.testing.assert_array_equal(held.unrolls.observation[:, number], entries.observation[2:])
        found[entries.observation[2:].tobytes(), entries.action[2:].tobytes()] = expected
    assert (held.key == -1).all()
    batch = source.next(30.0)
    for column in range(COLUMNS):
        key = [
            x.numpy()[:, column].tobytes()
            for x in (batch.unrolls.observation, batch.unrolls.action)
        ]
        np.testing.assert_array_equal(batch.start.frames[column], found[tuple(key)])


def test_learners_with_the_same_seed_share_a_pass(recorded):
    both = [_take(recorded, 4, share=(rank, 2))[0] for rank in range(2)]
    own = [_columns(batches)[:count] for batches, count in zip(both, (11, 10), strict=True)]
    everything, _ = _take(recorded, 7)
    assert sorted(own[0] + own[1]) == sorted(_columns(everything))


class _Listed(BatchSource):
    """A source of the given batches that writes down what is asked of it."""

    def __init__(self, *batches):
        self._batches, self.priorities = list(batches), []

    def next(self, timeout):
        return self._batches.pop(0) if self._batches else None

    def feedback(self, keys, priorities):
        self.priorities.append(keys)

    def filling(self):
        return 3, 7

    def take_stored_steps(self):
        return 11


def test_recorded_batches_come_first_and_their_priorities_go_nowhere():
    online = _Listed("online 0", "online 1")
    source = PhasedSource(online)
    assert source.next(0.0) == "online 0", "without recorded batches it is the other source"
    source.begin(_Listed("a", None, "b", "too much"), 2)
    assert (source.filling(), source.metrics()) == ((0, 0), {})
    assert [source.next(0.0) for _ in range(4)] == ["a", None, "b", "online 1"]
    assert (source.filling(), source.metrics()) == ((3, 7), {})
    assert source.take_stored_steps() == 11
    source.feedback(tf.constant([-1, -1], tf.int64), tf.zeros(2))
    assert not online.priorities
    source.feedback(tf.constant([4, 5], tf.int64), tf.zeros(2))
    assert len(online.priorities) == 1


def test_recorded_columns_are_beside_those_of_the_actors_and_have_no_priorities(recorded):
    (own, beside, later), _ = _take(recorded, 3)
    own = own._replace(key=tf.constant([4, 5, 6], tf.int64))
    online = _Listed(own, None)
    source = PhasedSource(online)
    source.begin(None, 0, _Listed(None, beside, later))
    assert source.next(0.0) is None, "it waits for the recorded columns"
    batch = source.next(0.0)
    np.testing.assert_array_equal(batch.key, [4, 5, 6, -1, -1, -1])
    for name in ("observation", "first", "action"):
        expected = [getattr(each.unrolls, name) for each in (own, beside)]
        np.testing.assert_array_equal(getattr(batch.unrolls, name), np.concatenate(expected, 1))
    assert batch.unrolls.first.device.endswith("CPU:0")
    source.feedback(batch.key, tf.range(6.0))
    np.testing.assert_array_equal(online.priorities[0], [4, 5, 6])
