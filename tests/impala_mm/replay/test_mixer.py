"""The balance of unrolls and updates, and what is counted as played."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unrolls import CODEC, LENGTH, unroll

from impala_mm.config import replay_mix
from impala_mm.replay.mixer import Mixer, RateLimiter
from impala_mm.replay.samplers import SamplerSetup, make_replay
from impala_mm.replay.store import pack


def test_an_update_needs_as_many_unrolls_as_the_ratio_says_and_actors_wait_once_it_is_possible():
    limiter = RateLimiter(ratio=0.25, minimum=6)
    assert [limiter.allowed_updates(n) for n in (0, 5, 6, 9, 10, 14)] == [0, 0, 1, 1, 2, 3]
    assert not limiter.allows_update(9, 1)
    assert limiter.allows_update(10, 1)
    assert limiter.room(0, 0, most=64) == 6
    assert limiter.room(6, 0, most=64) == 0
    assert limiter.room(6, 1, most=64) == 4
    assert limiter.room(6, 1, most=3) == 3


@settings(deadline=None)
@given(
    ratio=st.floats(0.02, 40),
    minimum=st.integers(1, 50),
    wishes=st.lists(st.booleans(), max_size=300),
)
def test_neither_side_gets_far_ahead_and_one_of_them_may_always_go_on(ratio, minimum, wishes):
    limiter, unrolls, updates = RateLimiter(ratio, minimum), 0, 0
    for wants_update in wishes:
        may_take = limiter.allows_unroll(unrolls, updates)
        may_update = limiter.allows_update(unrolls, updates)
        assert may_take or may_update
        if wants_update and may_update:
            updates += 1
        elif not wants_update and may_take:
            unrolls += 1
        assert updates <= max(0, ratio * (unrolls - minimum) + 1 + 1e-6)
        if unrolls >= minimum:
            assert ratio * (unrolls - minimum) - updates <= 2 * max(1, ratio)


@pytest.mark.parametrize(("resets", "overlap", "less"), [(0, 1, 0), (2, 1, 2), (0, 3, 2)])
def test_steps_are_new_entries_without_resets(resets, overlap, less):
    limiter = RateLimiter(ratio=1, minimum=1)
    mixer = Mixer(CODEC, [], [0], limiter, "keep_latest", lambda: 0.0, overlap, print)
    mixer.receive(unroll(1, resets=resets), 0, b"", None)
    assert mixer.take_stored_steps() == LENGTH - less
    assert mixer.take_stored_steps() == 0


def test_two_replays_of_a_kind_are_filled_and_measured_apart():
    random = np.random.default_rng(0)
    parts = replay_mix.parse("uniform:0.5:2,uniform:0.5:8").replays
    replays = [make_replay(SamplerSetup(part, 1e9, random)) for part in parts]
    limiter = RateLimiter(ratio=1, minimum=4)
    mixer = Mixer(CODEC, replays, [0, 1, 1], limiter, "keep_latest", lambda: 0.0, 1, print)
    for number in range(4):
        mixer.receive(unroll(number), number, pack(unroll(number)), None)
    assert len(mixer.draw().keys) == 2
    measured = mixer.metrics()
    assert (measured["replay_unrolls/uniform"], measured["replay_unrolls/uniform-2"]) == (2, 4)
