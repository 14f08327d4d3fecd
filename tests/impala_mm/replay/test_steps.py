"""The replay of steps: what its batches hold, and that it is saved."""

import numpy as np
import pytest

from impala_mm.data import batches
from impala_mm.replay.steps import RecordedSteps, SavedStepReplay, StepReplay
from tests.helpers.unrolls import LENGTH, SPEC

CAPACITY, COLUMNS = 6, 40


class Fresh:
    """A source of two unrolls at a time; entry t of unroll n has the reward 100 n + t."""

    def __init__(self):
        self.number = 0

    def next(self, timeout):
        batch = batches.zeros(SPEC, 2)
        t = np.arange(LENGTH + 1)[:, None]
        batch.unrolls.reward[:] = 100 * (self.number + np.arange(2)) + t
        batch.unrolls.observation[:] = batch.unrolls.reward[..., None]
        batch.unrolls.first[1, 0] = True
        batch.version[:] = self.number + np.arange(2)
        self.number += 2
        return batch._replace(weight=np.ones(2, np.float32))


def _replay(kind=StepReplay, minimum=0, **options):
    return kind(Fresh(), SPEC, CAPACITY, COLUMNS, minimum, [1, 2], **options)


def test_a_batch_has_each_new_step_once_and_stored_ones_at_random():
    replay = _replay()
    for k in range(5):
        batch = replay.next(1.0)
        assert batch.unrolls.reward.shape == (2, COLUMNS)
        before, after = batch.unrolls.reward
        np.testing.assert_array_equal(after, before + 1)
        np.testing.assert_array_equal(batch.unrolls.observation[..., 1], batch.unrolls.reward)
        np.testing.assert_array_equal(batch.version, before // 100)
        assert (batch.weight == 1).all()
        new = {100 * n + t for n in (2 * k, 2 * k + 1) for t in range(LENGTH)}
        assert sorted(before[batch.fresh]) == sorted(new)
        held = range(max(2 * k + 2 - CAPACITY, 0), 2 * k + 2)
        assert set(before[~batch.fresh] // 100) <= set(held)
        resets = (before % 100 == 0) & (before // 100 % 2 == 0)
        np.testing.assert_array_equal(batch.unrolls.first[1], resets)
    drawn = np.concatenate([replay._draw(np.arange(0)).unrolls.reward[0] for _ in range(300)])
    steps, counts = np.unique(drawn, return_counts=True)
    assert len(steps) == CAPACITY * LENGTH
    assert counts.min() > 0.8 * counts.mean()


def test_whole_unrolls_are_drawn_where_steps_mean_nothing_alone():
    batch = _replay(whole=True).next(1.0)
    assert batch.unrolls.reward.shape == (LENGTH + 1, COLUMNS)
    assert batch.fresh.sum() == 2
    np.testing.assert_array_equal(batch.unrolls.reward[0, batch.fresh], [0, 100])


def test_steps_before_the_first_batch_are_counted_as_stored():
    replay = _replay(minimum=5)
    assert replay.next(1.0) is None
    assert replay.next(1.0) is None
    assert replay.take_stored_steps() == 2 * (2 * LENGTH - 1), "one of each pair is a reset"
    assert replay.next(1.0) is not None
    assert replay.take_stored_steps() == 0


def _saved(folder):
    """Return a replay that has saved two batches, and one that has restored them."""
    replay, again = _replay(SavedStepReplay), _replay(SavedStepReplay)
    for _ in range(2):
        replay.next(1.0)
    replay.save(folder)
    again.restore(folder)
    return replay, again


def test_a_replay_that_was_saved_goes_on_with_the_same_draws(tmp_path):
    replay, again = _saved(tmp_path)
    again._fresh.number = replay._fresh.number
    for _ in range(4):
        for one, other in zip(replay.next(1.0), again.next(1.0), strict=True):
            np.testing.assert_equal(one, other)


def test_steps_of_another_run_are_older_than_all_of_this_one(tmp_path):
    _, again = _saved(tmp_path)
    again.make_older(9)
    np.testing.assert_array_equal(again._held.version, [-9, -8, -7, -6, 0, 0])
    again._fresh.number = 30
    batch = again.next(1.0)
    assert (batch.version[batch.fresh] >= 30).all()
    assert set(batch.version) - {30, 31} == {-9, -8, -7, -6}
    other = SavedStepReplay(Fresh(), SPEC._replace(length=3), CAPACITY, COLUMNS, 0, [1, 2])
    with pytest.raises(ValueError, match="has shape"):
        other.restore(tmp_path)
    assert not hasattr(_replay(), "save"), "only the saved kind offers it"


@pytest.mark.parametrize("whole", [False, True])
def test_recorded_steps_are_drawn_alike_and_count_as_played_nowhere(whole):
    fresh = Fresh()
    held = batches.join([fresh.next(0.0) for _ in range(3)])
    held.key[:] = -1
    source = RecordedSteps(held, COLUMNS, [3], whole)
    drawn = [source.next(0.0) for _ in range(100)]
    assert drawn[0].unrolls.reward.shape == ((LENGTH + 1 if whole else 2), COLUMNS)
    rewards = np.concatenate([batch.unrolls.reward for batch in drawn], 1)
    np.testing.assert_array_equal(rewards[1], rewards[0] + 1)
    steps, counts = np.unique(rewards[0], return_counts=True)
    assert len(steps) == 6 * (1 if whole else LENGTH)
    assert counts.min() > 0.7 * counts.mean()
    for batch in drawn:
        np.testing.assert_array_equal(batch.version, batch.unrolls.reward[0] // 100)
        assert (batch.key == -1).all()
        assert not batch.fresh.any()
