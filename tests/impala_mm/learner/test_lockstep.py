"""Learners agree on each step before they make it: here as threads, with made-up batches."""

import math
import queue
import threading
import time

import pytest
import tensorflow as tf
from deadlines import within
from in_threads import InThreads, Meeting
from supervising import until

from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.group import SingleLearner
from impala_mm.learner.lockstep import UNKNOWN, Lockstep, MeanReturns
from impala_mm.learner.sources.batch_source import BatchSource

T, B = 4, 3


def _batch(resets=0, weight=1.0, fresh=True):
    """Make a batch in which this many of the T x B steps are resets, which do not count."""
    first = tf.reshape(tf.range(T * B) < resets, [T, B])
    first = tf.concat([tf.fill([1, B], True), first], 0)  # the entry that overlaps
    entries = Entry(None, None, None, None, None, first, None)
    weight, fresh = tf.broadcast_to(weight, [B]), tf.broadcast_to(fresh, [B])
    return Batch(entries, (), None, weight, None, fresh)


class Source(BatchSource):
    """A batch source that the test fills."""

    def __init__(self):
        self.batches = queue.Queue()

    def next(self, timeout):
        try:
            batch = self.batches.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(batch, Exception):
            raise batch
        return batch


class Two:
    """The locksteps of two learners."""

    def __init__(self):
        meeting, self.known = Meeting(2), MeanReturns(12.5, 13.5)
        self.sources = [Source(), Source()]
        returns = [lambda: self.known, lambda: MeanReturns(99.0, 99.0)]  # only rank 0's is used
        self.steps = [
            Lockstep(self.sources[r], InThreads(r, meeting), 1, returns[r]) for r in range(2)
        ]

    def give(self, *batches):
        for source, batch in zip(self.sources, batches, strict=True):
            if batch:
                source.batches.put(batch)

    def next(self):
        return [step.next(timeout=60) for step in self.steps]


@pytest.fixture
def two():
    made = Two()
    yield made
    for step in made.steps:
        step.stop()


def test_a_step_counts_the_steps_of_all_learners_but_no_resets_and_no_padding(two):
    two.give(_batch(resets=2), _batch())
    left, right = two.next()
    assert (left.steps, left.own_steps) == (T * B * 2 - 2, T * B - 2)
    assert (right.steps, right.own_steps) == (T * B * 2 - 2, T * B)
    assert left.batch is not None
    assert right.batch is not None
    assert left.returns == right.returns == (12.5, 13.5)
    two.known = UNKNOWN
    two.give(_batch(weight=0.0), _batch())
    for turn in two.next():
        assert turn.steps == T * B
        assert all(math.isnan(x) for x in turn.returns)


def test_replayed_columns_do_not_count_and_weights_in_the_loss_change_nothing(two):
    two.give(
        _batch(weight=[0.25, 3.0, 1.0], fresh=[True, True, False]),
        _batch(weight=[0.25, 3.0, 0.0], fresh=[False, False, True]),
    )
    left, right = two.next()
    assert (left.own_steps, right.own_steps) == (T * 2, 0)
    assert left.steps == right.steps == T * 2


def test_all_save_after_the_same_step_once_for_each_request_of_rank_0(two):
    for saves in (False, True, False):
        if saves:
            two.steps[0].request_save()
        two.give(_batch(), _batch())
        assert [turn.saves for turn in two.next()] == [saves, saves]


def test_nobody_begins_a_step_before_all_have_a_batch(two):
    two.give(_batch(), None)
    assert two.steps[0].next(timeout=0.3) is None
    assert two.steps[0].ready < time.monotonic(), "it has its own, and waits for the other's"
    assert math.isinf(two.steps[1].ready)
    two.give(None, _batch())
    left, right = two.next()
    assert left.ready < right.ready


def test_who_stops_stops_all_after_the_step_that_was_agreed_on_and_needs_no_batch_for_it(two):
    two.give(_batch(), _batch())
    assert all(turn.batch is not None for turn in two.next())
    two.give(_batch(), None)
    two.steps[1].stop()
    assert [(turn.batch, turn.failed) for turn in two.next()] == [(None, False)] * 2


def test_a_source_that_fails_stops_all_and_is_raised_on_its_own_learner(two):
    two.give(ValueError("cut short"), _batch())
    with pytest.raises(ValueError, match="cut short"):
        two.steps[0].next(timeout=60)
    other = two.steps[1].next(timeout=60)
    assert (other.batch, other.failed) == (None, True)


def test_the_next_batch_is_asked_for_when_the_last_was_taken_and_no_earlier(two):
    batches = two.sources[0].batches
    two.give(_batch(), _batch())
    until(lambda: not two.steps[1]._agreed.empty())
    two.give(_batch(), None)
    time.sleep(0.3)
    assert batches.qsize() == 1, "an unroll that is not needed yet could still be a newer one"
    two.steps[0].next(timeout=60)
    until(lambda: not batches.qsize())


def test_who_is_alone_waits_for_its_own_batch_and_stops_at_once():
    source, mine = Source(), threading.current_thread()

    def mean_returns():
        assert threading.current_thread() is mine, "a thread between them would only cost time"
        return MeanReturns(12.5, 13.5)

    step = Lockstep(source, SingleLearner(), 1, mean_returns)
    assert step.next(timeout=0.05) is None
    begin = time.monotonic()
    source.batches.put(_batch(resets=2))
    turn = step.next(timeout=60)
    assert turn.batch is not None
    assert (turn.steps, turn.own_steps, turn.returns) == (T * B - 2, T * B - 2, (12.5, 13.5))
    assert turn.ready >= begin
    source.batches.put(ValueError("cut short"))
    step.stop()
    with pytest.raises(ValueError, match="cut short"):
        step.next(timeout=60)
    source.batches.put(_batch())
    for _ in range(2):
        with within(5):
            assert step.next(timeout=60).batch is None
