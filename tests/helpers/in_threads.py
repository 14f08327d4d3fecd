"""Learners as threads of the test's process: a group whose calls match by name, as in Horovod."""

import threading

import numpy as np
import tensorflow as tf
from deadlines import load

from impala_mm.distributed import group, minibatches


class Meeting:
    """A place where calls with the same name meet, round after round."""

    def __init__(self, size):
        self.size = size
        self._changed = threading.Condition()
        self._rounds = {}  # by (name, rank): calls so far
        self._values = {}  # by (name, round): {rank: value}

    def meet(self, name, rank, value):
        """Return every rank's value of this round, after all have called."""
        with self._changed:
            number = self._rounds[name, rank] = self._rounds.get((name, rank), -1) + 1
            there = self._values.setdefault((name, number), {})
            there[rank] = value
            self._changed.notify_all()
            met = self._changed.wait_for(lambda: len(there) == self.size, 20 * load())
            assert met, f"alone at {name}"
            return [there[rank] for rank in range(self.size)]


class InThreads(group.SingleLearner):
    """One learner of several; its methods work in eager mode."""

    def __init__(self, rank, meeting):
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def mean(self, tensors, name, compressed=False):
        everybodys = self._meeting.meet(name, self.rank, tensors)
        return [tf.add_n(list(each)) / self.size for each in zip(*everybodys, strict=True)]

    def sum(self, tensor, name):
        return tf.add_n(self._meeting.meet(name, self.rank, tensor))

    def broadcast(self, variables):
        values = self._meeting.meet("broadcast", self.rank, [v.numpy() for v in variables])[0]
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def gather(self, value, name):
        return self._meeting.meet(name, self.rank, value)


def share_of(group, columns):
    """Return the part of a number of columns that is this learner's, as a slice."""
    share = columns // group.size
    return slice(share * group.rank, share * (group.rank + 1))


def together(size, act):
    """Return what `act(group)` returned or raised on each of `size` learners."""
    meeting, results = Meeting(size), [None] * size

    def run(rank):
        try:
            results[rank] = act(InThreads(rank, meeting))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120 * load())
        assert not thread.is_alive()
    return results


def arrays(*groups):
    """Return copies of variables."""
    return [v.numpy() for group in groups for v in group]


def assert_close(one, other, rtol=1e-9, atol=1e-9):
    """Assert that two nests of arrays are equal to some digits; 0: in all bits."""
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other
    )


def largest_change(one, other):
    """Return the largest difference between two lists of arrays."""
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


def assert_several_are_one(learn, sizes=(2,), one=None, tolerance=1e-9):
    """Assert that `learn(group)` is the same for N learners with an Nth, and for one with all.

    Return it. With `one`, that is what one learner with all computes.
    """
    one = together(1, learn)[0] if one is None else one
    for size in sizes:
        for each in together(size, learn):
            assert_close(each, one, tolerance, tolerance)
    return one


def assert_several_are_one_by_minibatches(monkeypatch, learn, learners=2, row=0, tolerance=1e-9):
    """Assert that of a `learn(group)` that draws minibatches, and return what one computes.

    The minibatches of one learner join those of several from then on; `row` is that of `joined`.
    """
    several = together(learners, learn)
    parts = joined(minibatches.shuffled_parts, learners, row)
    monkeypatch.setattr(minibatches, "shuffled_parts", parts)
    (one,) = together(1, learn)
    for each in several:
        assert_close(each, one, tolerance, tolerance)
    return one


def joined(of_part, learners, row=0):
    """Return the minibatches of one learner that join those of several, whose shares are equal.

    They are of columns, or of single steps, if each time step has a `row` of so many columns.
    """

    def parts(size, *args):
        each = of_part(size // learners, *args).numpy()
        share = (row or size) // learners
        step, column = np.divmod(each, share)
        found = [step * row + rank * share + column for rank in range(learners)]
        return tf.constant(np.concatenate(found, 1), tf.int32)

    return parts
