"""Rounds: every unroll by one version, columns granted once, no wait for those that have gone."""

import threading
import time
from types import SimpleNamespace

import pytest
from deadlines import within
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.transport import rounds as module
from impala_mm.transport.rounds import Rounds, why_too_few, why_unfit


@pytest.fixture
def quick(monkeypatch):
    """Let rounds time out after 0.2 s, or 0.3 s for an actor that was not measured yet."""
    monkeypatch.setattr(module, "_LEAST_TIMEOUT", 0.2)
    monkeypatch.setattr(module, "_FIRST_TIMEOUT", 0.3)


@pytest.fixture
def rounds():
    """Return open rounds of 4 columns; `said` has their messages."""
    said = []
    made = Rounds(4, said.append)
    made.said = said
    _open(made, 0)
    return made


def _open(rounds, version):
    """Publish a version, and ask for the round that it plays."""
    rounds.publish(version)
    assert rounds.close(0.0) is None


def test_an_actor_plays_on_by_the_same_version_while_columns_are_free(rounds):
    for unroll in (b"a", b"b"):
        assert rounds.claim(0, 2) == 0
        assert rounds.claim(0, 2) == 0, "a repeated claim claims no more"
        assert rounds.close(0.0) is None
        assert rounds.take(0, 0, [unroll] * 2) == [unroll] * 2
    assert rounds.claim(0, 2) is None, "the round is full"
    assert rounds.close(0.0) == 4
    assert rounds.claim(0, 2) is None, "no round is open"
    _open(rounds, 1)
    assert rounds.claim(0, 2) == 1
    assert (rounds.padded, rounds.dropped, rounds.said) == (0, 0, [])


@pytest.mark.usefixtures("quick")
def test_the_progress_of_a_round_is_known_while_actors_play_it(rounds):
    assert rounds.progress == (0, 0), "nobody plays it yet"
    rounds.claim(0, 3)
    assert rounds.progress == (0, 4)
    rounds.take(0, 0, [b"", b""])
    assert rounds.progress == (2, 4)
    rounds.take(1, 0, [b"", b""])
    assert rounds.close(0.0) == 4
    assert rounds.progress == (0, 0), "the learner trains"
    _open(rounds, 1)
    rounds.claim(0, 4)
    time.sleep(0.5)
    rounds.close(0.0)
    assert rounds.progress == (0, 0), "its only actor has gone"


def test_a_round_is_played_by_the_policy_after_the_updates_on_all_earlier_batches(rounds):
    rounds.take(0, 0, [b""] * 4)
    assert rounds.close(0.0) == 4
    rounds.begin_update()
    assert rounds.close(0.0) is None, "the learner trains on this round"
    assert rounds.claim(0, 4) is None
    rounds.begin_update()  # on a replayed batch
    for version, played_by in ((1, None), (2, 2)):
        rounds.publish(version)
        assert rounds.close(0.0) is None
        assert rounds.claim(0, 4) == played_by


def test_no_round_opens_before_it_is_asked_for_and_one_policy_may_play_several(rounds):
    """Else unrolls of two versions were mixed, or a source waited for ever for a second round."""
    for _ in range(2):
        assert rounds.claim(0, 4) in {None, 0}
        assert rounds.close(0.0) is None
        assert rounds.take(0, 0, [b""] * 4) == [b""] * 4
        assert rounds.close(0.0) == 4
    rounds.publish(1)
    assert rounds.claim(0, 4) is None
    assert rounds.dropped == 0


def test_a_round_that_updates_on_replayed_batches_overtake_ends_and_none_waits_for_its_policy(
    rounds,
):
    """Actors can no longer download the policy of such a round."""
    assert rounds.claim(0, 2) == 0
    rounds.publish(1)
    assert rounds.close(0.0) is None
    assert rounds.claim(1, 2) == 1, "nothing had arrived: the new version plays it"
    assert rounds.take(0, 0, [b""] * 2) == []
    assert rounds.take(1, 1, [b""] * 2) == [b""] * 2
    assert rounds.claim(0, 2) == 1
    rounds.publish(2)
    assert rounds.claim(1, 2) is None
    assert rounds.close(0.0) is None, "actor 0 may be playing"
    assert rounds.take(0, 1, [b""]) == [b""]
    assert (rounds.close(0.0), rounds.padded) == (3, 1)
    assert rounds.close(0.0) is None
    assert rounds.claim(1, 2) == 2


def test_those_that_wait_are_granted_the_next_round_before_an_actor_claims_twice(rounds):
    rounds.claim(0, 4)
    for actor in (1, 2):
        assert rounds.claim(actor, 2) is None
    rounds.take(0, 0, [b""] * 4)
    assert rounds.claim(0, 4) is None
    rounds.close(0.0)
    _open(rounds, 1)
    assert rounds.claim(0, 4) is None, "actors 1 and 2 have waited longer"
    assert [rounds.claim(actor, 2) for actor in (2, 1)] == [1, 1]


def test_an_actor_that_has_left_is_granted_nothing(rounds):
    rounds.claim(0, 4)
    rounds.claim(1, 4)
    rounds.forget(1)
    rounds.take(0, 0, [b""] * 4)
    rounds.close(0.0)
    _open(rounds, 1)
    assert rounds.claim(0, 4) == 1
    assert rounds.claim(2, 4) is None
    rounds.forget(0)
    assert rounds.claim(2, 4) == 1, "the columns that it played are free"


@pytest.mark.usefixtures("quick")
def test_unrolls_of_another_version_are_dropped_and_counted(rounds):
    assert rounds.claim(0, 2) == 0
    rounds.take(1, 0, [b"never claimed"] * 2)
    assert rounds.close(1.0) == 2
    _open(rounds, 1)
    assert rounds.take(0, 0, [b"old"] * 2) == []
    assert rounds.take(1, 1, [b"never claimed"]) == [b"never claimed"]
    assert rounds.dropped == 2
    (line,) = rounds.said[1:]
    assert "dropped 2 unrolls of actor 0: they came after their round had ended" in line


def test_unrolls_beyond_the_columns_are_dropped_and_broken_environments_leave_columns(rounds):
    rounds.claim(0, 3)
    assert len(rounds.take(0, 0, [b""] * 2)) == 2, "one of its environments broke"
    rounds.claim(1, 3)
    assert len(rounds.take(1, 0, [b""] * 3)) == 2
    assert (rounds.close(0.0), rounds.dropped) == (4, 1)
    assert "dropped 1 unrolls of actor 1: their round was full" in rounds.said[0]


@pytest.mark.usefixtures("quick")
def test_a_round_does_not_wait_for_an_actor_that_has_gone(rounds):
    rounds.claim(0, 2)
    rounds.claim(1, 2)
    began = time.monotonic()
    rounds.take(0, 0, [b""] * 2)
    with within(2.0):
        assert rounds.close(5.0) == 2
    assert time.monotonic() - began > 0.2
    assert rounds.padded == 2
    (line,) = rounds.said
    assert "padded with 2 of weight 0: actor 1 sent none in time" in line
    _open(rounds, 1)
    for _ in range(2):
        assert rounds.claim(0, 2) == 1, "the columns of the other actor are free again"
        rounds.take(0, 1, [b""] * 2)
    assert (rounds.close(0.0), rounds.padded) == (4, 2)


@pytest.mark.usefixtures("quick")
def test_a_round_in_which_nothing_came_is_played_by_others(rounds):
    rounds.claim(0, 4)
    assert rounds.claim(1, 4) is None
    assert rounds.close(0.6) is None, "a batch without an unroll is no batch"
    assert rounds.claim(1, 4) == 0
    assert rounds.padded == 0


@pytest.mark.usefixtures("quick")
def test_a_slow_actor_is_waited_for_once_it_is_measured(rounds):
    def play_slowly(version):
        rounds.claim(1, 2)
        time.sleep(0.6)
        rounds.take(1, version, [b""] * 2)

    counts = []
    for version in range(2):
        _open(rounds, version)
        slow = threading.Thread(target=play_slowly, args=[version])
        rounds.claim(0, 2)
        slow.start()
        time.sleep(0.05)
        rounds.take(0, version, [b""] * 2)
        counts.append(rounds.close(5.0))
        slow.join()
    assert counts == [2, 4], "its first unrolls came too late, and taught how long they take"
    assert rounds.dropped == 2


def test_environments_that_cannot_fill_a_round_are_refused_with_the_numbers_that_fit():
    assert why_unfit(32, 8) == ""
    assert why_unfit(4, 16).endswith("use --num_envs=1, 2 or 4, or --batch_size=16")
    assert "or --batch_size=36" in why_unfit(32, 12)
    assert why_too_few(4, 4) == why_too_few(4, 0) == why_too_few(1, 1) == ""
    assert "there are only 3 actors" in why_too_few(4, 3)


def _overlapping():
    rounds = Rounds(4, overlap=True)
    _open(rounds, 0)
    assert rounds.claim(0, 4) == 0
    assert rounds.take(0, 0, [b""] * 4) == [b""] * 4
    assert rounds.close(0.0) == 4
    return rounds


def test_with_overlap_the_next_round_is_played_while_the_learner_trains_on_the_last_one():
    rounds = _overlapping()
    assert rounds.claim(0, 4) is None, "the learner has not begun the update"
    for version in range(3):
        rounds.begin_update()
        assert rounds.claim(0, 4) == version
        assert rounds.take(0, version, [b""] * 4) == [b""] * 4
        assert rounds.claim(0, 4) is None, "at most one round is ahead"
        rounds.publish(version + 1)
        assert rounds.close(0.0) == 4
    assert (rounds.padded, rounds.dropped) == (0, 0)


def test_with_overlap_who_comes_after_the_update_plays_by_the_newer_policy():
    """The older one can no longer be downloaded. The round has both, and the lag is at most 1."""
    rounds = _overlapping()
    rounds.begin_update()
    assert rounds.claim(0, 2) == 0
    assert rounds.claim(1, 2) == 0
    rounds.publish(1)
    assert rounds.claim(1, 2) == 1, "it has not downloaded version 0"
    assert rounds.take(0, 0, [b"old"] * 2) == [b"old"] * 2
    assert rounds.take(1, 1, [b"new"] * 2) == [b"new"] * 2
    assert rounds.close(0.0) == 4


def test_with_overlap_unrolls_of_a_policy_before_the_rounds_own_are_dropped():
    rounds = _overlapping()
    rounds.begin_update()
    rounds.take(0, 0, [b""] * 4)
    rounds.publish(1)
    assert rounds.close(0.0) == 4
    rounds.begin_update()
    assert rounds.claim(0, 4) == 1
    assert rounds.take(1, 0, [b"too old"]) == []
    assert rounds.dropped == 1


def test_with_overlap_an_actor_does_not_wait_for_slower_ones_but_for_the_last_update():
    rounds = _overlapping()
    rounds.begin_update()
    assert [rounds.claim(actor, 2) for actor in (0, 1)] == [0, 0]
    assert rounds.take(0, 0, [b"fast"] * 2) == [b"fast"] * 2
    assert rounds.claim(0, 2) is None, "its lag would be 2"
    rounds.publish(1)
    assert rounds.claim(0, 2) == 1, "the round after the one that actor 1 still plays"
    assert rounds.take(0, 1, [b"next"] * 2) == [], "held"
    assert rounds.progress == (2, 4), "of the round that ends first"
    assert rounds.claim(0, 2) == 1, "two columns of that round are free"
    assert rounds.claim(2, 2) is None, "there is no third round"
    assert rounds.close(0.0) is None
    assert rounds.take(1, 0, [b"slow"] * 2) == [b"slow"] * 2
    assert rounds.close(0.0) == 4
    assert rounds.release() == [], "the first round held nothing"
    rounds.begin_update()
    assert rounds.take(0, 1, [b"now first"] * 2) == [b"now first"] * 2
    assert rounds.close(0.0) == 4
    assert rounds.release() == [(b"next", 1)] * 2
    assert rounds.release() == [], "each once"
    assert (rounds.padded, rounds.dropped) == (0, 0)


def test_with_overlap_no_unroll_of_the_next_round_overtakes_one_of_the_last_in_the_queue():
    """An unroll counts as received before it is in the queue."""
    rounds = _overlapping()
    rounds.begin_update()
    assert [rounds.claim(actor, 2) for actor in (0, 1)] == [0, 0]
    rounds.take(0, 0, [b"in the queue"] * 2)
    rounds.publish(1)
    assert rounds.claim(2, 2) == 1
    assert rounds.take(1, 0, [b"on its way to the queue"] * 2)
    assert rounds.close(0.0) == 4
    assert rounds.take(2, 1, [b"next"] * 2) == [], "the learner takes the last round now"
    rounds.begin_update()
    assert rounds.claim(1, 2) == 1
    assert rounds.take(1, 1, [b"direct"] * 2) == [b"direct"] * 2
    assert rounds.close(0.0) == 4
    assert rounds.release() == [(b"next", 1)] * 2


def test_with_overlap_the_timeout_of_a_round_begins_when_the_one_before_it_has_ended(monkeypatch):
    seconds = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: seconds))
    rounds = _overlapping()
    rounds.begin_update()
    assert [rounds.claim(actor, 2) for actor in (0, 1)] == [0, 0]
    rounds.take(0, 0, [b""] * 2)
    rounds.publish(1)
    assert rounds.claim(0, 2) == 1
    rounds.take(0, 1, [b""] * 2)
    rounds.forget(0)
    seconds = 60.0
    rounds.take(1, 0, [b""] * 2)
    assert rounds.close(0.0) == 4
    rounds.begin_update()
    assert rounds.close(0.0) is None, "the other actor may claim the rest"
    assert rounds.claim(1, 2) == 1
    rounds.take(1, 1, [b""] * 2)
    assert (rounds.close(0.0), rounds.padded) == (4, 0)


@pytest.mark.usefixtures("quick")
def test_with_overlap_a_round_without_its_actor_ends_and_the_next_one_keeps_what_came():
    rounds = _overlapping()
    rounds.begin_update()
    assert [rounds.claim(actor, 2) for actor in (0, 1)] == [0, 0]
    rounds.take(0, 0, [b""] * 2)
    rounds.publish(1)
    assert rounds.claim(0, 4) == 1
    assert rounds.take(0, 1, [b"next"] * 4) == []
    with within(2.0):
        assert rounds.close(5.0) == 2
    assert (rounds.padded, rounds.release()) == (2, [])
    assert rounds.close(0.0) == 4, "the lost actor took no column of it"
    assert rounds.release() == [(b"next", 1)] * 4
    assert rounds.take(1, 0, [b"late"] * 2) == []


@settings(max_examples=60)
@given(
    seconds=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    decoding=st.integers(0, 3),
    training=st.integers(0, 12),
    asks_ahead=st.booleans(),
    environments=st.sampled_from([1, 2, 4]),
    sending=st.data(),
)
def test_with_overlap_every_batch_is_full_and_its_lag_at_most_one_however_fast_actors_are(
    seconds, decoding, training, asks_ahead, environments, sending
):
    """Simulated: actors that need so long for an unroll, and a learner for a batch and an update.

    Between the end of a round and the update on it the learner takes the batch and decodes it. A
    learner among several asks for the next batch while the update runs. Unrolls are in the queue
    some time after they were taken.
    """
    rounds = Rounds(4, overlap=True)
    rounds.publish(0)
    delivered, trained, queue, on_their_way = [], [], [], []
    ends = {}  # by actor: when its unroll ends, and its version
    closed = begun_at = published_at = None
    batches, updates = [], 0  # those that wait for their update
    for now in range(120):
        for actor, (end, version) in list(ends.items()):
            if end == now:
                del ends[actor]
                unrolls = [f"{actor}-{now}-{i}".encode() for i in range(environments)]
                delivered += unrolls
                taken = [(each, version) for each in rounds.take(actor, version, unrolls)]
                on_their_way.append((now + sending.draw(st.integers(0, 2)), taken))
        queue += [each for at, taken in on_their_way if at == now for each in taken]
        if published_at == now:
            updates, published_at = updates + 1, None
            rounds.publish(updates)
        may_ask = closed is None and begun_at is None and not batches
        if may_ask and (published_at is None or asks_ahead):
            closed = rounds.close(0.0)
            queue += rounds.release()
        if closed and len(queue) >= 4:
            batch, queue, closed = queue[:4], queue[4:], None
            batches.append(batch)
            begun_at = now + decoding
        if begun_at == now:
            rounds.begin_update()
            begun_at = None
        if batches and begun_at is None and published_at is None:
            batch = batches.pop()
            assert all(updates - version in {0, 1} for _, version in batch)
            trained += batch
            published_at = now + 1 + training
        for actor, duration in enumerate(seconds):
            version = None if actor in ends else rounds.claim(actor, environments)
            if version is not None:
                ends[actor] = now + duration, version
    assert len({each for each, _ in trained}) == len(trained) > 0
    assert len(delivered) - len(trained) <= 12, "two rounds are open, and one waits"
    assert (rounds.padded, rounds.dropped) == (0, 0)


@pytest.mark.usefixtures("quick")
def test_the_round_of_a_lone_actor_lasts_until_it_asks_for_the_next_one():
    """By then, all that it reports with the round has arrived."""
    rounds = Rounds(4, alone=True)
    _open(rounds, 0)
    assert rounds.claim(0, 4) == 0
    time.sleep(0.5)
    assert rounds.close(0.0) is None, "it may take as long as it likes"
    assert rounds.take(0, 0, [b""] * 3) == [b""] * 3
    time.sleep(0.5)
    assert rounds.close(0.0) is None
    assert rounds.claim(0, 4) == 0, "one of its environments had broken: a column is free"
    assert rounds.take(0, 0, [b""] * 4) == [b""]
    assert rounds.close(0.0) is None
    asking = threading.Timer(0.2, rounds.claim, [0, 4])
    asking.start()
    assert rounds.close(20) == 4
    asking.join()
    assert rounds.padded == 0
    _open(rounds, 1)
    assert rounds.claim(0, 4) == 1
