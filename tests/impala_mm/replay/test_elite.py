"""The strategies of elite sampling, attentive replay, and distances that are kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from impala_mm.config import replay_mix
from impala_mm.replay import elite
from impala_mm.replay.elite import choose_elite, cosine, kl
from impala_mm.replay.samplers import ComparedFeatures, Measures, SamplerSetup, make_replay
from impala_mm.replay.store import StoredUnroll

DISTANCES = np.array([0.5, 0.1, 0.9, 0.3, 0.7, 0.2])
USES = np.array([0, 2, 0, 1, 0, 2])


@pytest.mark.parametrize(
    ("strategy", "chosen"),
    [
        ("1", [1, 5, 3]),  # the smallest distances
        ("2", [1, 3, 4]),  # sorted: 1 5 | 3 0 | 4 2
        ("3", [0, 4, 2]),  # never drawn: 0, 2, 4
        ("4", [1, 0, 4]),  # the least drawn of each group
    ],
)
def test_each_strategy_chooses_what_it_says(strategy, chosen):
    assert choose_elite(DISTANCES, USES, 3, strategy).tolist() == chosen


@settings(deadline=None)
@given(
    distances=st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=40),
    number=st.integers(1, 40),
    strategy=st.sampled_from("1234"),
)
def test_as_many_as_asked_for_are_chosen_and_none_twice_even_if_all_are_alike(
    distances, number, strategy
):
    number = min(number, len(distances))
    uses = np.arange(len(distances)) % 2
    chosen = choose_elite(np.array(distances), uses, number, strategy)
    assert len(set(chosen.tolist())) == number


class Learner:
    """Measures whose recorded features are an unroll's version and its present ones 0."""

    def __init__(self):
        self.computed, self.now = [], 0
        self.measures = Measures(self.recorded, self.both, lambda: self.now)

    def recorded(self, unrolls):
        return np.array([[[u.version, 0.0]] * 2 for u in unrolls], np.float32)  # [N, T, F]

    def both(self, unrolls):
        self.computed += [u.key for u in unrolls]
        recorded = self.recorded(unrolls)
        return ComparedFeatures(recorded, np.zeros_like(recorded))


def _replay(versions, learner, kind="elite", **options):
    """Return a full replay of unrolls with these versions."""
    given = [f"{name}={value}" for name, value in options.items()]
    (part,) = replay_mix.parse(":".join([kind, "1", f"{len(versions)}", *given])).replays
    replay = make_replay(SamplerSetup(part, 1e9, np.random.default_rng(0), learner.measures))
    for key, version in enumerate(versions):
        replay.insert(StoredUnroll(key, version, b"x"))
    return replay


def test_a_distance_is_kept_until_it_is_too_old():
    learner = Learner()
    replay = _replay([3, 1, 2], learner, max_age=10)
    assert replay.distances(np.array([0, 1, 0])).tolist() == [3, 1, 3]
    assert learner.computed == [0, 1]
    learner.now = 10
    assert replay.distances(np.array([0, 2])).tolist() == [3, 2]
    assert learner.computed == [0, 1, 2]
    learner.now = 11
    replay.distances(np.array([0, 1, 2]))
    assert learner.computed == [0, 1, 2, 0, 1]
    replay.insert(StoredUnroll(3, 9, b"x"))  # in the last slot, whose unroll takes the first one's
    assert replay.distances(np.array([0])).tolist() == [2]
    assert len(learner.computed) == 5
    assert replay.distances(np.array([2])).tolist() == [9]


def _elite(versions, strategy="1", candidates=3.0):
    options = {"strategy": strategy, "max_age": 10, "lambda": candidates}
    return _replay(versions, learner := Learner(), **options), learner


def test_elite_prefers_unrolls_of_which_the_policy_still_thinks_alike():
    replay, _ = _elite(list(range(30)), candidates=15.0)
    draw = replay.draw(2, 0.0)
    assert sorted(replay.store[slot].version for slot in draw.slots) == [0, 1]
    assert draw.measured["distance"] == 0.5
    assert draw.measured["distance_of_candidates"] == 14.5


def test_the_share_of_candidates_falls_with_the_runs_frames_and_not_with_calls():
    replay, learner = _elite(list(range(100)), candidates=3.0)
    for _ in range(50):
        assert "distance" in replay.draw(10, 0.0).measured
    learner.computed.clear()
    learner.now = 1000
    replay.draw(10, 0.5)
    assert len(learner.computed) == 20
    assert replay.draw(10, 1.0).measured == {}, "in the end it draws at random"
    learner.computed.clear()
    late = _replay(list(range(100)), learner, anneal=2)
    late.draw(10, 1.0)
    assert len(learner.computed) == 20, "over twice the run: at its end, half of it is left"
    few, _ = _elite([5, 7], strategy="2")
    assert len(few.draw(6, 0.0).slots) == 6, "they are drawn again"


class Varying(Learner):
    """Measures whose recorded features are other ones at each of three steps."""

    STEPS = ([0, 0, 9], [4, 4, 4], [5, 6, 7])

    def recorded(self, unrolls):
        return np.array([self.STEPS[u.key] for u in unrolls], np.float32)[..., None]


def test_elite_compares_steps_and_attentive_each_one_with_the_last_of_the_newest_unroll():
    """It is 7, from which the steps differ by 7, 7, 2; by 3, 3, 3; and by 2, 1, 0."""
    assert _replay([0, 0, 0], Varying()).distances(np.arange(3)).tolist() == [3, 4, 6]
    replay = _replay([0, 0, 0], Varying(), "attentive")
    draw = replay.draw(1, 0.0)
    assert replay.store[draw.slots[0]].key == 2
    assert draw.measured["distance"] == pytest.approx(1)
    assert draw.measured["distance_of_candidates"] == pytest.approx((16 / 3 + 3 + 1) / 3)


@pytest.mark.parametrize(("insertion", "left"), [("elite", [4, 2, 3]), ("oldest", [9, 2, 3])])
def test_a_full_elite_replay_makes_room_by_the_rule_that_the_mix_names(insertion, left):
    replay = _replay([4, 9, 2], Learner(), insertion=insertion, compared=3)
    replay.insert(StoredUnroll(3, 3, b"x"))
    assert [unroll.version for unroll in replay.store.in_order()] == left


def test_norms_and_the_cosine_which_is_a_distance_and_not_a_similarity():
    a, b = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    for order, expected in (
        ("1", [7, 2]),
        ("2", [5, 2**0.5]),
        ("3", [91 ** (1 / 3), 2 ** (1 / 3)]),
    ):
        np.testing.assert_allclose(elite.distance_of(f"l{order}")(a, b), expected)
    np.testing.assert_allclose(elite.distance_of("linf")(a, b), [4, 1])
    small = np.float32([[1e-3, 1e-3]])
    np.testing.assert_allclose(elite.distance_of("l20")(small, 0 * small), 1e-3 * 2**0.05)
    x = np.array([1.0, 0.0])
    others = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(cosine(np.broadcast_to(x, others.shape), others), [0, 1, 2, 1])
    assert cosine(np.zeros(2), np.zeros(2)) == 0


def test_kl_is_that_of_softmax_and_bears_large_numbers():
    a, b = np.array([0.3, -1.0, 2.0]), np.array([1.0, 0.5, -0.2])
    p, q = (np.exp(x) / np.exp(x).sum() for x in (a, b))
    np.testing.assert_allclose(kl(a, b), stats.entropy(p, q))
    assert kl(a, a) == pytest.approx(0)
    assert np.isfinite(kl(1e4 * a, 1e4 * b))
