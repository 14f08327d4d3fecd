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
from impala_mm.learner.lockstep import Lockstep
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

    def __init__(self, mean_return=lambda: math.nan):
        meeting = Meeting(2)
        self.sources = [Source(), Source()]
        self.returns = [mean_return, lambda: 99.0]  # only rank 0's is used
        self.steps = [
            Lockstep(self.sources[r], InThreads(r, meeting), 1, self.returns[r]) for r in range(2)
        ]

    def give(self, rank, batch):
        self.sources[rank].batches.put(batch)

    def next(self):
        return [step.next(timeout=60) for step in self.steps]

    def end(self):
        for step in self.steps:
            step.stop()


@pytest.fixture
def two():
    made = Two()
    yield made
    made.end()


def test_a_step_counts_the_steps_of_all_learners_but_no_resets_and_no_padding(two):
    two.give(0, _batch(resets=2))
    two.give(1, _batch())
    left, right = two.next()
    assert (left.steps, left.own_steps) == (T * B * 2 - 2, T * B - 2)
    assert (right.steps, right.own_steps) == (T * B * 2 - 2, T * B)
    assert left.batch is not None
    assert right.batch is not None
    two.give(0, _batch(weight=0.0))
    two.give(1, _batch())
    assert [turn.steps for turn in two.next()] == [T * B] * 2


def test_replayed_columns_do_not_count_and_weights_in_the_loss_change_nothing(two):
    two.give(0, _batch(weight=[0.25, 3.0, 1.0], fresh=[True, True, False]))
    two.give(1, _batch(weight=[0.25, 3.0, 0.0], fresh=[False, False, True]))
    left, right = two.next()
    assert (left.own_steps, right.own_steps) == (T * 2, 0)
    assert left.steps == right.steps == T * 2


def test_all_save_after_the_same_step_once_for_each_request_of_rank_0(two):
    for rank in range(2):
        two.give(rank, _batch())
    assert [turn.saves for turn in two.next()] == [False, False]
    two.steps[0].request_save()
    for saves in (True, False):
        for rank in range(2):
            two.give(rank, _batch())
        assert [turn.saves for turn in two.next()] == [saves, saves]


def test_nobody_begins_a_step_before_all_have_a_batch(two):
    two.give(0, _batch())
    assert two.steps[0].next(timeout=0.3) is None
    assert two.steps[0].ready < time.monotonic(), "it has its own, and waits for the other's"
    assert math.isinf(two.steps[1].ready)
    two.give(1, _batch())
    left, right = two.next()
    assert left.ready < right.ready


def test_who_stops_stops_all_and_needs_no_batch_for_it(two):
    two.give(0, _batch())
    two.steps[1].stop()
    assert [(turn.batch, turn.failed) for turn in two.next()] == [(None, False)] * 2


def test_a_stop_comes_after_the_step_that_was_agreed_on(two):
    for rank in range(2):
        two.give(rank, _batch())
    first = [step.next(timeout=60) for step in two.steps]
    two.steps[0].stop()
    two.give(1, _batch())
    assert all(turn.batch is not None for turn in first)
    assert [turn.batch for turn in two.next()] == [None, None]


def test_a_source_that_fails_stops_all_and_is_raised_on_its_own_learner(two):
    two.give(0, ValueError("cut short"))
    two.give(1, _batch())
    with pytest.raises(ValueError, match="cut short"):
        two.steps[0].next(timeout=60)
    other = two.steps[1].next(timeout=60)
    assert (other.batch, other.failed) == (None, True)


@pytest.mark.parametrize("known", [math.nan, 12.5, 0.0])
def test_all_know_the_return_that_rank_0_knows(known):
    two = Two(lambda: known)
    for rank in range(2):
        two.give(rank, _batch())
    returns = [turn.episode_return for turn in two.next()]
    two.end()
    assert returns == [known] * 2 or (math.isnan(known) and all(map(math.isnan, returns)))


def test_the_next_batch_is_asked_for_when_the_last_was_taken_and_no_earlier(two):
    batches = two.sources[0].batches
    for rank in range(2):
        two.give(rank, _batch())
    until(lambda: not two.steps[1]._agreed.empty())
    two.give(0, _batch())
    time.sleep(0.3)
    assert batches.qsize() == 1, "an unroll that is not needed yet could still be a newer one"
    two.steps[0].next(timeout=60)
    until(lambda: not batches.qsize())


@pytest.fixture
def alone():
    source, mine = Source(), threading.current_thread()

    def mean_return():
        assert threading.current_thread() is mine, "a thread between them would only cost time"
        return 12.5

    return Lockstep(source, SingleLearner(), 1, mean_return), source.batches


def test_who_is_alone_waits_for_its_own_batch_and_for_nobody_else(alone):
    step, batches = alone
    assert step.next(timeout=0.05) is None
    begin = time.monotonic()
    batches.put(_batch(resets=2))
    turn = step.next(timeout=60)
    assert turn.batch is not None
    assert (turn.steps, turn.own_steps, turn.episode_return) == (T * B - 2, T * B - 2, 12.5)
    assert turn.ready >= begin


@pytest.mark.parametrize("there", [True, False])
def test_who_is_alone_stops_at_once_and_needs_no_batch_for_it(alone, there):
    step, batches = alone
    if there:
        batches.put(_batch())
    step.stop()
    with within(5):
        assert step.next(timeout=60).batch is None


@pytest.mark.parametrize("stopped", [False, True])
def test_who_is_alone_hears_that_its_source_failed(alone, stopped):
    step, batches = alone
    batches.put(ValueError("cut short"))
    if stopped:
        step.stop()
    with pytest.raises(ValueError, match="cut short"):
        step.next(timeout=60)
