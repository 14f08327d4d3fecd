"""Tests of the throughput model: limits worked out by hand, and properties of any plan."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import ROOT

sys.path.append(
    str(ROOT / "sandbox" / "benchmarks")
)  # the scripts import each other by short names

import throughput_model
from cost_model import ClusterPlan, CostFactors, Host, HostCosts, RunShape, WorkerSet
from throughput_model import (
    RateLimits,
    count_actors_needed,
    infer_limits,
    predict,
    straggler_efficiency,
)

FREE = HostCosts(*[0.0] * len(HostCosts._fields))
# An actor plays 500 steps/s (2.0 ms of its main thread, 2.5 core-ms per step); a learner trains on
# 1,000 steps/s with 1.5 cores.
COSTS_OF_HOST = FREE._replace(
    cores=4,
    environment=0.0010,
    inference=0.0008,
    packing=0.0002,
    sending=0.0005,
    training=0.0012,
    training_secs=0.0010,
    receiving=0.0003,
    asking=0.0002,
)
# An unroll has 10 kB per step, a pull 1 MB.
SHAPE = RunShape(
    num_envs=10,
    unroll_length=20,
    batch_size=5,
    unroll_bytes=200e3,
    parameter_bytes=1e6,
    gradient_bytes=1e6,
    min_pull_secs=0.1,
)
ALONE = CostFactors()


def plan(sets, shape=SHAPE, factors=ALONE, gbit=math.inf, **cores):
    """Make a plan of sets written as (learner's host, {host: actors})."""
    names = {name for learner, actors in sets for name in (learner, *actors)}
    hosts = {
        n: Host(COSTS_OF_HOST._replace(cores=cores.get(n, COSTS_OF_HOST.cores)), gbit)
        for n in sorted(names)
    }
    return ClusterPlan(hosts, [WorkerSet(*each) for each in sets], shape, factors)


def test_actors_with_a_core_each_supply_what_their_thread_plays():
    found = predict(plan([("gpu", {"cpu": 1})]))
    assert found.limits[0].supply == pytest.approx(500, rel=1e-4)
    assert found.total_rate == pytest.approx(500, rel=1e-4)
    assert found.limits[0].bottleneck == "supply"
    assert found.actors_needed == [2]


def test_an_actor_whose_groups_take_turns_is_as_fast_as_was_measured_so():
    """2 ms one after another; in turns 1.4 ms elapsed and 2.4 core-ms, and 0.5 core-ms to send."""

    def supply(actors, env_groups, turning=0.0024, cpu=4):
        made = plan([("gpu", {"cpu": actors})], SHAPE._replace(env_groups=env_groups), cpu=cpu)
        costs = made.hosts["cpu"].costs._replace(turning=turning, turning_secs=turning and 0.0014)
        made.hosts["cpu"] = made.hosts["cpu"]._replace(costs=costs)
        return predict(made).limits[0].supply

    assert supply(1, env_groups=2) == pytest.approx(1 / 0.0014, rel=1e-4)
    assert supply(1, env_groups=2, cpu=1) == pytest.approx(1 / 0.0029, rel=1e-4)
    assert supply(3, env_groups=2) == pytest.approx(4 / 0.0029, rel=1e-4)
    assert supply(3, env_groups=1) == pytest.approx(3 / 0.002, rel=1e-4)
    assert supply(1, env_groups=2, turning=0.0) == pytest.approx(1 / 0.002, rel=1e-4), "unmeasured"


def test_more_actors_than_cores_share_them():
    """4 cores / 2.5 core-ms per step."""
    found = predict(plan([("gpu", {"cpu": 7})]))
    assert found.limits[0].supply == pytest.approx(1600, rel=1e-4)
    assert found.limits[0].bottleneck == "learner"
    assert found.total_rate == pytest.approx(1000, rel=1e-4)


def test_actors_and_a_learner_of_one_host_share_its_cores():
    """2 cores / (2.5 + 1.5 core-ms per step); a learner's step takes 1.0 ms, an actor's 2.0."""
    found = predict(plan([("here", {"here": 3})], here=2))
    assert found.limits[0] == pytest.approx(RateLimits(800, 1000, math.inf, 500), rel=1e-4)
    assert found.limits[0].bottleneck == "cores"
    assert found.actors_needed == [1]
    assert found.total_rate == pytest.approx(500, rel=1e-4)


def test_an_actor_stands_back_while_an_update_is_made_beside_it():
    """An actor with low priority is slowed down during updates.

    An update takes 1 ms per step and leaves half a core of 2, of which the actor would use 1.25. So
    for this ms it plays at 0.4 of its speed, and then at full speed, 2.0 ms per step.
    """
    found = predict(plan([("here", {"here": 1})], here=2))
    assert found.limits[0].supply == pytest.approx(500, rel=1e-4)
    assert found.limits[0].cores == pytest.approx(1 / (0.0020 + 0.6 * 0.0010), rel=1e-4)
    assert found.limits[0].bottleneck == "cores"
    assert found.total_rate == pytest.approx(found.limits[0].cores, rel=1e-4)


def test_learners_that_want_more_cores_than_there_are_hold_an_actor_back_for_longer():
    """Two updates of 1.5 core-ms take 1.5 ms on 2 cores and leave none to the actor."""
    made = plan([("here", {"here": 1}), ("here", {"there": 9})], here=2, there=64)
    assert predict(made).limits[0].cores == pytest.approx(1 / (0.0020 + 0.0015), rel=1e-4)


def test_a_step_costs_more_where_a_learner_and_actors_use_the_same_cores():
    """On a shared host 2.0 of an actor's 2.5 core-ms cost 1.2 times as much.

    Of a learner's 1.5 core-ms, 1.2 cost 1.5 times as much; its elapsed time is 1.5 times as long.
    On separate hosts the costs are unchanged.
    """

    def costs(sets, on_gpu=False, **cores):
        made = plan(sets, **cores)
        for name, host in made.hosts.items():
            dearer = host.costs._replace(actor_beside=1.2, learner_beside=1.5)
            if on_gpu:
                dearer = dearer._replace(training=0.0002)
            made.hosts[name] = host._replace(costs=dearer)
        return predict(made).limits[0]

    both = costs([("here", {"here": 3})], here=2)
    assert both.cores == pytest.approx(
        2 / (1.2 * 0.0020 + 0.0005 + 1.5 * 0.0012 + 0.0003), rel=1e-4
    )
    assert both.learner == pytest.approx(1 / 0.0015, rel=1e-4)
    apart = costs([("gpu", {"cpu": 3})])
    assert (apart.supply, apart.learner) == pytest.approx((1500, 1000), rel=1e-4)
    # For any number of actors: at a rate r the share b of 64 cores is busy, with
    # 64 b = r (2.5 + 0.4 b + 1.5 + 0.6 b) ms, where
    # r (1 + 0.5 b) ms = 1 for the learner, r (2 + 0.4 b) ms for an actor.
    for actors in (1, 30):
        idle = costs([("here", {"here": actors})], here=64)
        busy = (math.sqrt(63**2 + 4 * 32 * 4) - 63) / 64
        assert idle.learner == pytest.approx(1000 / (1 + 0.5 * busy), rel=1e-4)
        busy = (math.sqrt((64 - actors / 2) ** 2 + 4 * 12.8 * 2 * actors) - 64 + actors / 2) / 25.6
        assert idle.supply == pytest.approx(500 * actors / (1 + 0.2 * busy), rel=1e-4)
    # The cores compute 0.2 ms of an update's 1 ms on a GPU.
    gpu = costs([("here", {"here": 3})], on_gpu=True, here=2)
    assert gpu.learner == pytest.approx(1 / 0.0011, rel=1e-4)


def test_so_is_the_time_of_an_actor_that_takes_turns_or_asks_for_actions():
    """1.2 times 1.4 ms in turns, or 1.2 times 1.0 ms of environment plus 0.2 ms of requests."""

    def supply(cores, **shape):
        made = plan([("here", {"here": 1})], SHAPE._replace(**shape), here=cores)
        costs = made.hosts["here"].costs
        costs = costs._replace(turning=0.0024, turning_secs=0.0014, actor_beside=1.2)
        made.hosts["here"] = made.hosts["here"]._replace(costs=costs)
        return predict(made).limits[0].supply

    assert supply(2.4, env_groups=2) == pytest.approx(1 / 0.00168, rel=1e-4)
    assert supply(1.5, inference="learner") == pytest.approx(1 / 0.0014, rel=1e-4)


def test_what_is_done_once_a_policy_or_an_update_or_a_pull_is_part_of_a_step():
    """Costs per policy, update and pull are divided among their steps.

    Loading a policy takes 40 ms for 200 steps, publishing one 50 ms for 100; a pull, one per 200
    steps at this rate, takes 20 ms at one end and 10 at the other.
    """

    def limits(sets, **cores):
        made = plan(sets, **cores)
        for name, host in made.hosts.items():
            costs = host.costs._replace(loading=0.04, publishing=0.05, pulling=0.02, serving=0.01)
            made.hosts[name] = host._replace(costs=costs)
        return predict(made).limits[0]

    apart = limits([("gpu", {"cpu": 1})])
    assert apart.supply == pytest.approx(1 / 0.0022, rel=1e-4)
    assert apart.learner == pytest.approx(1 / 0.0015, rel=1e-4)
    shared = limits([("here", {"here": 3})], here=2)
    assert shared.cores == pytest.approx(2 / (0.0027 + 0.0020 + 0.00015), rel=1e-4)


def test_an_actor_that_leaves_its_host_idle_is_not_said_to_share_its_cores():
    found = predict(plan([("here", {"here": 1})], here=8))
    assert found.limits[0].cores == math.inf
    assert found.limits[0].bottleneck == "supply"
    assert found.actors_needed == [2]


def test_a_link_carries_unrolls_one_way_and_parameters_the_other():
    """0.04 Gbit/s are 5 MB/s; with 10 kB per step they carry 500 steps/s, and 5 MB/s of pulls."""
    found = predict(plan([("gpu", {"cpu": 4})], gbit=0.04))
    assert found.limits[0].network == pytest.approx(500, rel=1e-4)
    assert found.limits[0].bottleneck == "network"
    assert found.actors_needed == [1]
    # At 200 steps/s, 2 updates per second of 100 steps cause 2 pulls: 2 MB/s the other way.
    slower = predict(plan([("gpu", {"cpu": 4})], gbit=0.016))
    assert slower.limits[0].network == pytest.approx(200, rel=1e-4)


def test_learners_on_other_hosts_exchange_gradients():
    """Each of 2 learners sends 1 MB per 100 steps: as many bytes per step as unrolls have here."""
    sets = [("gpu0", {"gpu0": 4}), ("gpu1", {"gpu1": 4})]
    assert predict(plan(sets, gbit=0.04)).limits[0].network == pytest.approx(500, rel=1e-4)
    together = [("gpu", {"gpu": 4}), ("gpu", {"gpu": 4})]
    assert predict(plan(together, gbit=0.04)).limits[0].network == math.inf


def test_one_pull_serves_all_actors_of_a_host():
    """At most 10 pulls/s of 1 MB: 0.1 Gbit/s suffice for 40 actors on one host, not on 40 hosts."""
    shape = SHAPE._replace(unroll_bytes=0.0)
    assert predict(plan([("gpu", {"cpu": 40})], shape, gbit=0.1)).limits[0].network == math.inf
    apart = plan([("gpu", {f"cpu{i}": 1 for i in range(40)})], shape, gbit=0.1)
    # Each host pulls after each round of unrolls: rate / (10 x 20) pulls/s of 1 MB in 12.5 MB/s.
    assert predict(apart).limits[0].network == pytest.approx(2500, rel=1e-4)


def test_inference_at_the_learner_pulls_nothing_and_spares_the_actors_network():
    shape = SHAPE._replace(inference="learner", unroll_bytes=0.0)
    found = predict(plan([("gpu", {f"cpu{i}": 1 for i in range(40)})], shape, gbit=0.1))
    # 8 bytes per step in 12.5 MB/s.
    assert found.limits[0].network == pytest.approx(12.5e6 / 8, rel=1e-4)
    assert found.limits[0].supply == pytest.approx(40 / 0.0012, rel=1e-4)


def test_calls_for_actions_cost_actor_and_learner_what_was_measured():
    made = plan([("gpu", {"cpu": 2})], SHAPE._replace(inference="learner"))
    costs = COSTS_OF_HOST._replace(asking=0.0003, answering=0.0068, central_secs=0.0005)
    found = predict(made._replace(hosts={name: Host(costs) for name in made.hosts}))
    assert found.limits[0].supply == pytest.approx(2 / 0.0013, rel=1e-4)
    assert found.limits[0].learner == pytest.approx(4 / 0.0080, rel=1e-4), "its cores"
    costs = costs._replace(answering=0.0008)
    found = predict(made._replace(hosts={name: Host(costs) for name in made.hosts}))
    assert found.limits[0].learner == pytest.approx(1 / 0.0015, rel=1e-4), "its device"


def test_learners_in_lockstep_go_as_the_slowest():
    found = predict(plan([("gpu0", {"cpu0": 1}), ("gpu1", {"cpu1": 2})]))
    assert found.slowest_set == 0
    assert found.rate == pytest.approx(500, rel=1e-4)
    assert found.total_rate == pytest.approx(1000, rel=1e-4)


def test_a_set_that_is_held_back_leaves_its_cores_to_the_others():
    """A set that waits for the slowest does not use its share of the cores.

    Shared evenly, 5 cores would give 6 actors 333 steps/s each: 667 and 1,333 for the two sets. At
    1,000 each set takes 2.5 cores, and its learner is at its limit.
    """
    found = predict(plan([("gpu0", {"cpu": 2}), ("gpu1", {"cpu": 4})], cpu=5))
    assert found.limits[0].supply == pytest.approx(1000, rel=1e-4)
    assert found.rate == pytest.approx(1000 * straggler_efficiency(2), rel=1e-4)


@pytest.mark.parametrize(("learners", "left"), [(1, 1.0), (2, 0.968), (4, 0.943), (8, 0.928)])
def test_stragglers_cost_what_drawn_times_cost(learners, left):
    """The formula agrees with the simulation in sandbox/multi_learner.md."""
    assert straggler_efficiency(learners) == pytest.approx(left, abs=0.001)


def test_what_a_running_run_waits_says_what_it_could_do():
    found = infer_limits(100.0, learner_wait_share=0.5, actor_wait_share=0.2)
    assert (found.supply, found.learner) == pytest.approx((125.0, 200.0))
    assert count_actors_needed(found.learner, 125.0 / 5) == 8
    assert count_actors_needed(300.0, 0.1 * 1000) == 3, "a rounding error adds no fourth actor"


# -- properties of any plan

POSITIVE_COSTS = st.floats(1e-5, 1e-2)


@st.composite
def plans(draw):
    """Draw a plan of one or two sets on hosts that they may share."""
    values = [draw(POSITIVE_COSTS) for _ in HostCosts._fields[1:]]
    names = ["a", "b", "c"]
    costs = HostCosts(1, *values)._replace(
        actor_beside=draw(st.floats(1, 2)), learner_beside=draw(st.floats(1, 2))
    )
    hosts = {
        name: Host(costs._replace(cores=draw(st.integers(1, 16))), draw(st.floats(0.01, 10)))
        for name in names
    }
    sets = [
        WorkerSet(
            draw(st.sampled_from(names)), {draw(st.sampled_from(names)): draw(st.integers(1, 50))}
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    shape = SHAPE._replace(
        parameter_bytes=draw(st.floats(1e3, 1e7)),
        min_pull_secs=draw(st.floats(0, 1)),
        inference=draw(st.sampled_from(["actor", "learner"])),
    )
    return ClusterPlan(hosts, sets, shape)


@settings(max_examples=30, deadline=None)
@given(plans(), st.integers(1, 20))
def test_more_actors_never_supply_less(before, more):
    own = before.sets[0]
    ((host, count),) = own.actors.items()
    sets = [own._replace(actors={host: count + more}), *before.sets[1:]]
    one, other = predict(before), predict(before._replace(sets=sets))
    assert other.limits[0].supply >= one.limits[0].supply * (1 - 1e-6)
    if len(sets) == 1:  # with two sets, more actors of one take cores from the other
        assert other.total_rate >= one.total_rate * (1 - 1e-4)


@settings(max_examples=30, deadline=None)
@given(plans(), st.floats(1, 10))
def test_more_bandwidth_or_cheaper_steps_never_give_less(before, times):
    hosts = {n: host._replace(gbit=host.gbit * times) for n, host in before.hosts.items()}
    one = predict(before).total_rate
    assert predict(before._replace(hosts=hosts)).total_rate >= one * (1 - 1e-4)
    cheaper = before._replace(factors=CostFactors(1 / times, 1 / times))
    assert predict(cheaper).total_rate >= one * (1 - 1e-4)


@settings(max_examples=30, deadline=None)
@given(plans())
def test_a_prediction_keeps_to_its_limits_and_loses_nothing_without_a_reason(each):
    hosts = {
        name: host._replace(costs=host.costs._replace(pulling=0.0, serving=0.0))
        for name, host in each.hosts.items()
    }
    found = predict(each._replace(hosts=hosts))  # no single limit includes the cost of pulls
    assert found.rate <= min(limits.rate for limits in found.limits) * (1 + 1e-4)
    assert found.total_rate == pytest.approx(found.rate * len(each.sets))
    assert found.rate > 0
    if len(each.sets) == 1:
        assert found.rate >= 0.999 * found.limits[0].rate


# -- comparison with published figures

# The predecessor's table: steps/s by actors; one learner on a GPU, actors on machines of 4 cores.
PUBLISHED = {15: 2300, 25: 4300, 35: 6000, 45: 6200, 50: 6200, 110: 6300}


def predecessor(actors, factors=ALONE):
    """Make a plan with 200 steps/s per actor and 5,000 of the learner before the fit."""
    costs = FREE._replace(cores=1000, environment=5e-3, training_secs=2e-4)
    hosts = {"gpu": Host(costs), "cpu": Host(costs)}
    return ClusterPlan(hosts, [WorkerSet("gpu", {"cpu": actors})], SHAPE, factors)


@pytest.mark.parametrize(
    ("points", "each", "most", "predicted"),
    [
        # 2,300 / 15 = 153.3 per actor; x 25 = 3,833 and x 35 = 5,367; then 6,300.
        ((15, 110), 153.3, 6300, {25: 3833, 35: 5367, 45: 6300, 50: 6300}),
        # 4,300 / 25 = 172 per actor; x 15 = 2,580 and x 35 = 6,020; then 6,200.
        ((25, 45), 172.0, 6200, {15: 2580, 35: 6020, 50: 6200, 110: 6200}),
        # 6,000 / 35 = 171.4 per actor; x 15 = 2,571 and x 25 = 4,286; then 6,200.
        ((35, 50), 171.4, 6200, {15: 2571, 25: 4286, 45: 6200, 110: 6200}),
    ],
)
def test_two_points_of_the_predecessors_table_predict_the_others(points, each, most, predicted):
    factors = throughput_model.fit_cost_factors(
        [predecessor(n) for n in points], [PUBLISHED[n] for n in points]
    )
    limits = predict(predecessor(1, factors)).limits[0]
    assert limits.supply == pytest.approx(each, rel=2e-3)
    assert limits.learner == pytest.approx(most, rel=2e-3)
    for actors, rate in predicted.items():
        found = predict(predecessor(actors, factors)).total_rate
        assert found == pytest.approx(rate, rel=2e-3)
        assert found == pytest.approx(PUBLISHED[actors], rel=0.15)


PAIRS = list(itertools.product((15, 25, 35), (45, 50, 110)))  # points of its slope and plateau


def test_any_point_of_the_slope_and_any_of_the_plateau_predict_the_table():
    worst = 0.0
    for slope, plateau in PAIRS:
        factors = CostFactors(
            actor=200 * slope / PUBLISHED[slope], learner=5000 / PUBLISHED[plateau]
        )
        found = {
            n: predict(predecessor(n, factors)).total_rate / rate for n, rate in PUBLISHED.items()
        }
        assert (found[slope], found[plateau]) == pytest.approx((1, 1), rel=1e-3)
        worst = max(worst, *(abs(ratio - 1) for ratio in found.values()))
    assert worst == pytest.approx(0.122, abs=0.003)


@pytest.mark.parametrize(("power", "worst"), [(16, 0.18), (8, 0.33), (4, 0.69)])
def test_a_minimum_that_is_rounded_off_predicts_it_worse(power, worst):
    """The smooth minimum rate^-p = (actors x each)^-p + most^-p is linear in the fitted values."""
    errors = []
    for points in PAIRS:
        rows = [[float(n) ** -power, 1.0] for n in points]
        each, most = np.linalg.solve(rows, [(PUBLISHED[n] / 6000) ** -power for n in points])
        found = {n: 6000 * (float(n) ** -power * each + most) ** (-1 / power) for n in PUBLISHED}
        errors += [abs(found[n] / rate - 1) for n, rate in PUBLISHED.items()]
    assert max(errors) == pytest.approx(worst, abs=0.006)


def test_a_fit_finds_the_factors_that_made_its_rates():
    factors = CostFactors(1.3, 0.8)
    two = [plan([("here", {"here": 3})], here=2), plan([("gpu", {"cpu": 1})])]
    rates = [predict(each._replace(factors=factors)).total_rate for each in two]
    assert throughput_model.fit_cost_factors(two, rates) == pytest.approx(factors, rel=2e-3)
