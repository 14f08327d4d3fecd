"""Tests of sandbox/benchmarks/cluster_events.py: runs in which one cost alone sets the rate."""

import sys

import pytest
from processes import ROOT

sys.path.append(str(ROOT / "sandbox" / "benchmarks"))  # the scripts import each other so

import many_learners
from cluster_events import AllReduce, Run, Simulation
from cluster_model import straggler_efficiency

FREE = AllReduce(0.0, 0.0, 0.0)
# Each of 10 actors plays 4 unrolls in 0.4 s; a learner trains on 8 in 0.2 s.
RUN = Run(1, 10, 0.19, 0.01, FREE, 1e6, 0.4, batch_size=8, queue_capacity=8, envs=4)


def simulate(seconds=80.0, **changes):
    return Simulation(RUN._replace(**changes)).simulate(seconds)


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 1 / 0.2),
        ({"actors": 1}, 4 / 0.4 / 8),
        ({"learners": 2, "actors": 4}, 2 * 4 / 0.4 / 8),
        # The learner's core receives 4 unrolls in 0.2 s; its link carries them in as long.
        ({"receive_seconds": 0.2}, 4 / 0.2 / 8),
        ({"message_bytes": 2e5, "link": 1e6}, 4 / 0.2 / 8),
        # Each actor waits for its download before it sends again: 0.05 s of the link for each.
        ({"parameter_bytes": 5e5, "link": 1e6, "actors": 20}, 4 / 0.5 / 8),
        ({"parameter_bytes": 5e5, "link": 1e6, "actors_per_host": 10}, 1 / 0.2),
        ({"learners": 4, "actors": 20}, 1 / (0.19 / straggler_efficiency(4) + 0.01)),
    ],
    ids=str,
)
def test_the_scarcest_resource_sets_the_rate(changes, rate):
    assert simulate(**changes).updates_per_second == pytest.approx(rate, rel=0.03)


def test_an_all_reduce_hides_behind_the_backward_pass_until_it_takes_longer():
    many = {"learners": 4, "actors": 20, "jitter": 0.0, "gradient_bytes": 1e6}
    passes, sent = 0.19, 1.5e6  # a ring of 4 sends 2 * 3/4 of the bytes
    hidden = simulate(**many, link=1e8)
    late = 0.02 * sent / 1e8
    assert hidden.updates_per_second == pytest.approx(1 / (passes + late + 0.01), rel=0.01)
    shown = simulate(**many, link=1e6)
    assert shown.updates_per_second == pytest.approx(1 / (passes / 3 + sent / 1e6 + 0.01), rel=0.01)
    hops = simulate(**many, allreduce=AllReduce(0.0, 0.0, 0.0, hop_seconds=0.1))
    assert hops.updates_per_second == pytest.approx(1 / (passes / 3 + 2 * 0.6 + 0.01), rel=0.01)


def test_shares_say_what_is_scarce():
    few = simulate(actors=1)
    assert few.wait_share == pytest.approx(1 - 1.25 * 0.2, abs=0.03)
    assert few.exchange_share == pytest.approx(0, abs=0.01)
    crowded = simulate(receive_seconds=0.2)
    assert crowded.ingest_share == pytest.approx(1, abs=0.02)
    assert simulate(message_bytes=2e5, link=1e6).link_share == pytest.approx(1, abs=0.02)
    assert few.lag < simulate().lag, "actors that wait for room hold old unrolls"


def test_the_fit_finds_the_costs_of_made_up_rows():
    costs = [6.0, 2.0, 0.5, 1.5]
    rows = [
        {
            "learners": n,
            "bytes": b,
            "cores": 2,
            "seconds": AllReduce(2e-3, 5e-4, 1.5e-9 * n / 2).seconds(b, n, n),
        }
        for n in (2, 4, 8)
        for b in (4, 1_700_000, 27_200_000)
    ]
    simulated = [{"learners": n, "ms": ms, "cores": 2} for n in (1, 2, 4, 8) for ms in (30, 100)]
    for row in simulated:
        row["updates_per_second"] = many_learners.simulated_rate(row, costs)
    assert many_learners.fit([*rows, *simulated]) == pytest.approx(costs, rel=0.05)
