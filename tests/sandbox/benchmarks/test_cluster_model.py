"""Tests of sandbox/benchmarks/cluster_model.py: limits of hand-made clusters, a published table."""

import itertools
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import ROOT

sys.path.append(str(ROOT / "sandbox" / "benchmarks"))  # the scripts import each other so

from cluster_model import (
    ClusterPlan,
    Host,
    HostCosts,
    RunShape,
    WorkerSet,
    predict,
)

# An actor plays 500 steps/s, which take 2.5 core-ms each; a learner trains on 1,000, with 1.5.
COSTS = HostCosts(4, 0.0020, 0.0025, 0.0010, 0.0015)
SHAPE = RunShape(100, 200, 10e3, 1e6, 1e6, 0.1)  # 100 steps per update, 10 kB per step


def plan(sets, shape=SHAPE, gbit=math.inf, **cores):
    """Make a plan of these (learner's host, actors by host); each host has 64 cores or these."""
    sets = [WorkerSet(*each) for each in sets]
    names = {name for each in sets for name in (each.learner, *each.actors)}
    hosts = {n: Host(COSTS._replace(cores=cores.get(n, 64)), gbit) for n in names}
    return ClusterPlan(hosts, sets, shape)


def close(value):
    return pytest.approx(value, rel=1e-4)


def test_actors_supply_what_they_play_until_the_learner_has_enough():
    for actors, rate, bottleneck in ((1, 500, "supply"), (3, 1000, "learner")):
        found = predict(plan([("gpu", {"cpu": actors})]))
        assert found.total_rate == close(rate)
        assert found.limits[0].bottleneck == bottleneck
        assert found.actors_needed == [2]


def test_actors_share_the_cores_of_their_host_evenly():
    """5 cores are enough for two of three actors, of two sets, one of which has another host."""
    found = predict(plan([("a", {"cpu": 2}), ("b", {"cpu": 1, "other": 1})], cpu=3))
    assert found.limits[0].supply == close(2 / 3 * 3 / 0.0025)
    assert found.limits[1].supply == close(1 / 3 * 3 / 0.0025 + 500)
    assert found.slowest_set == 0


def test_a_learner_and_actors_on_one_host_share_its_cores():
    """A step takes 2.5 core-ms to play and 1.5 to train on."""
    found = predict(plan([("here", {"here": 3})], here=2))
    assert found.limits[0].cores == close(2 / 0.0040)
    assert (found.limits[0].bottleneck, found.total_rate) == ("cores", close(500))


def test_an_actor_has_the_cores_that_an_update_leaves():
    """1 ms of 2 ms and more is an update, which leaves 0.5 of the 1.25 cores that it would use."""
    found = predict(plan([("here", {"here": 1})], here=2))
    assert found.limits[0].supply == close(500)
    assert found.limits[0].cores == close(1 / (0.0020 + 0.6 * 0.0010))
    assert found.actors_needed == [2], "which use the cores that are idle between updates"
    assert predict(plan([("here", {"here": 1})], here=8)).limits[0].cores == math.inf


def test_a_link_carries_unrolls_one_way_and_parameters_the_other():
    """0.04 Gbit/s are 5 MB/s: 500 steps/s of 10 kB; pulls of 1 MB take less than that."""
    found = predict(plan([("gpu", {"cpu": 4})], gbit=0.04))
    assert found.limits[0].network == close(500)
    assert (found.limits[0].bottleneck, found.actors_needed) == ("network", [1])
    small = SHAPE._replace(step_bytes=0.0)
    # One pull serves all actors of a host, at most every 0.1 s: 10 MB/s.
    assert predict(plan([("gpu", {"cpu": 40})], small, gbit=0.1)).limits[0].network == math.inf
    apart = plan([("gpu", {f"cpu{i}": 1 for i in range(40)})], small, gbit=0.1)
    # Each of 40 hosts pulls after its 200 steps: 1 MB for 200 steps in 12.5 MB/s.
    assert predict(apart).limits[0].network == close(2500)


def test_a_learner_that_chooses_actions_sends_them_and_no_parameters():
    shape = SHAPE._replace(step_bytes=0.0, parameter_bytes=0.0)
    found = predict(plan([("gpu", {"cpu": 1})], shape, gbit=0.1))
    assert found.limits[0].network == close(12.5e6 / 8)


def test_learners_on_other_hosts_exchange_gradients():
    """Each of 2 learners sends 1 MB per 100 steps: as many bytes per step as unrolls have here."""
    sets = [("gpu0", {"gpu0": 4}), ("gpu1", {"gpu1": 4})]
    assert predict(plan(sets, gbit=0.04)).limits[0].network == close(500)
    together = [("gpu", {"gpu": 4}), ("gpu", {"gpu": 4})]
    assert predict(plan(together, gbit=0.04)).limits[0].network == math.inf


def test_learners_in_lockstep_go_as_the_slowest():
    found = predict(plan([("gpu0", {"cpu0": 1}), ("gpu1", {"cpu1": 2})]))
    assert (found.slowest_set, found.total_rate) == (0, close(1000))


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.floats(1e-5, 1e-2)] * 4), st.integers(1, 16), st.floats(0.01, 10))
def test_more_actors_or_bandwidth_never_give_less(costs, cores, gbit):
    host = Host(HostCosts(cores, *costs), gbit)
    for actors in ({"a": 3}, {"b": 3}):
        before = ClusterPlan({"a": host, "b": host}, [WorkerSet("a", actors)], SHAPE)
        rate = predict(before).total_rate
        assert rate > 0
        faster = {name: host._replace(gbit=2 * gbit) for name in "ab"}
        more = [WorkerSet("a", dict.fromkeys(actors, 5))]
        for better in (before._replace(hosts=faster), before._replace(sets=more)):
            assert predict(better).total_rate >= rate * (1 - 1e-4)


# The predecessor's table: steps/s by actors; one learner on a GPU, actors on machines of 4 cores.
PUBLISHED = {15: 2300, 25: 4300, 35: 6000, 45: 6200, 50: 6200, 110: 6300}


def test_any_point_of_the_slope_and_any_of_the_plateau_predict_the_table():
    worst = 0.0
    for slope, plateau in itertools.product((15, 25, 35), (45, 50, 110)):
        acting, learning = slope / PUBLISHED[slope], 1 / PUBLISHED[plateau]
        host = Host(HostCosts(1000, acting, acting, learning, learning))
        found = {
            n: predict(
                ClusterPlan({"gpu": host, "cpu": host}, [WorkerSet("gpu", {"cpu": n})], SHAPE)
            ).total_rate
            / rate
            for n, rate in PUBLISHED.items()
        }
        assert (found[slope], found[plateau]) == pytest.approx((1, 1), rel=1e-3)
        worst = max(worst, *(abs(ratio - 1) for ratio in found.values()))
    assert worst == pytest.approx(0.122, abs=0.003)
