"""An algorithm's own source: what it may return, and which thread calls it when."""

import threading
import time

import in_process
import numpy as np
import pytest
import tensorflow as tf
from deadlines import within
from supervising import until

from impala_mm.algorithms.feature import NO_FEATURES, Begun
from impala_mm.algorithms.interface import entry_spec
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.environments.make import level_spec
from impala_mm.learner.sources.own import BadSource, OwnSource

UNROLL = UnrollSpec(4, 1, entry_spec(level_spec("catch"), extras=()), ())


def _batch(size=2, first_key=0):
    batch = batches.zeros(UNROLL, size)
    batch.unrolls.reward[:] = np.arange(first_key, first_key + size)
    return batch._replace(
        key=np.arange(first_key, first_key + size),
        weight=np.ones(size, np.float32),
        fresh=np.ones(size, bool),
    )


class Returning:
    """A source that returns these batches one after the other."""

    def __init__(self, *returned):
        self.returned, self.heard = list(returned), []

    def next(self, timeout):
        return self.returned.pop(0) if self.returned else None

    def feedback(self, keys, priorities):
        self.heard.append(keys)


def _own(source):
    return OwnSource(lambda fresh: source, None, UNROLL)


def test_arrays_become_tensors_that_the_source_may_overwrite_afterwards():
    batch = _batch()
    found = _own(Returning(batch)).next(1.0)
    batch.unrolls.reward[:] = 9
    assert all(tf.is_tensor(leaf) for leaf in tf.nest.flatten(found))
    assert found.unrolls.reward.numpy()[3].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([_batch(2), _batch(3)], r"batch.unrolls.action int32 \[5, 3\] instead of int32 \[5, 2\]"),
        ([_batch()._replace(weight=np.ones(2))], r"batch.weight float64 \[2\]"),
        ([tuple(_batch())], "returned no Batch .*: it is a tuple"),
        ([_batch()._replace(key=None)], "returned no Batch"),
    ],
)
def test_batches_that_an_update_cannot_use_are_refused_by_name(returned, said):
    own = _own(Returning(*returned))

    def ask():
        for _ in returned:
            own.next(0.1)

    with pytest.raises(BadSource, match=said):
        ask()


def test_a_source_without_its_methods_is_refused_when_it_is_made():
    class Saving(Returning):
        def save(self, folder):
            pass

    with pytest.raises(BadSource, match="no method next"):
        _own(None)
    with pytest.raises(BadSource, match="a method save but no restore"):
        _own(Saving())


def test_priorities_and_questions_reach_a_source_in_the_thread_that_asks_it_for_batches():
    """With several learners, one thread asks for batches and another one has the priorities."""
    threads, said = set(), []

    class Source(Returning):
        def next(self, timeout):
            threads.add(threading.get_ident())
            return super().next(timeout)

        def feedback(self, keys, priorities):
            threads.add(threading.get_ident())
            super().feedback(keys, priorities)

        def metrics(self):
            threads.add(threading.get_ident())
            return {"left": float(len(self.returned))}

        def filling(self):
            threads.add(threading.get_ident())
            return len(self.returned), 5

    def ask_elsewhere():
        own.feedback("keys", "priorities")
        said.extend((own.filling(), own.metrics()))

    source = Source(_batch(), _batch())
    own = _own(source)
    assert (own.filling(), own.metrics()) == ((0, 0), {})
    own.next(0.1)
    elsewhere = threading.Thread(target=ask_elsewhere)
    elsewhere.start()
    elsewhere.join()
    assert said == [(1, 5), {"left": 1.0}]
    assert not source.heard
    own.next(0.1)
    assert source.heard == ["keys"], "before the next batch"
    assert threads == {threading.get_ident()}


def test_saving_gets_its_turn_while_another_thread_asks_again_and_again(tmp_path):
    calls = []

    class Slow(Returning):
        def next(self, timeout):
            calls.append("in")
            time.sleep(0.02)
            calls.append("out")

        def save(self, folder):
            calls.append("save")

        restore = save

    own, ended = _own(Slow()), threading.Event()

    def ask():
        while not ended.is_set():
            own.next(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: calls)
    with within(1):
        own.save(tmp_path)
    ended.set()
    asking.join()
    assert calls[calls.index("save") - 1] == "out", "no other call was running"


@pytest.mark.parametrize("make", [np.array, tf.constant], ids=["arrays", "tensors"])
def test_what_padding_contains_reaches_no_gradient(make):
    """A network that reads NaN has NaN as gradients, also if its outputs are masked afterwards."""
    algorithm = in_process.make(Config(level_name="CartPole-v1", agent_name="MLPLSTMAgent"))
    garbage = batches.zeros(algorithm.unroll, 3)
    garbage.weight[:2], garbage.fresh[:2] = 1, True
    plain = tf.nest.map_structure(np.copy, garbage)
    for leaf in tf.nest.flatten((garbage.unrolls, garbage.start)):
        if leaf.dtype == np.float32:
            axis = leaf.shape.index(3)
            leaf[(slice(None),) * axis + (2,)] = np.nan

    def gradients(batch):
        source = Returning(tf.nest.map_structure(make, batch))
        found = OwnSource(lambda fresh: source, None, algorithm.unroll).next(0.1)
        assert found.weight.numpy().tolist() == [1, 1, 0]
        with tf.GradientTape() as tape:
            loss, *_ = algorithm._loss(Begun(found, (), 0.0, {}), None, NO_FEATURES)
        return tape.gradient(loss, algorithm.variables.trained)

    for each, expected in zip(gradients(garbage), gradients(plain), strict=True):
        np.testing.assert_array_equal(each, expected)
