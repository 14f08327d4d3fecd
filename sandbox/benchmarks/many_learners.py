"""Predict the speed of many learners and actors from what `scaling.py` measured on one machine.

    python sandbox/benchmarks/many_learners.py [--update_ms=100] [--gbit=10] [...]

`scaling.py sitting --record` measures an all-reduce by bytes and ranks, 1 to 8 simulated learners,
and the wire. The costs of `cluster_events.py` are fitted to them; the first table has its errors
where the runs with a number of learners are predicted from all others. The second one predicts a
cluster in which each learner has a host of its own.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from cluster_events import AllReduce, Run, Simulation, exchange_end
from cluster_model import straggler_efficiency
from scipy.optimize import least_squares

_RECORD = Path(__file__).with_name("scaling.json")
_SIMULATED_BYTES = 6_800_000
_CORES = 2  # of the machine on which the runs were made that are recorded without a host
_FIRST_GUESS = [8.0, 1.0, 1.0, 1.0]  # of the costs that are fitted, see `single_host`
Row = dict[str, Any]


def single_host(row: Row, costs: list[float], **more: Any) -> Run:
    """Return the run of a row of `scaling.py`; costs: overhead, all-reduce (ms; ns for a byte).

    Learners on one machine compete for its cores, also where they add up gradients.
    """
    count, (overhead, fixed, rank, byte) = row["learners"], costs
    crowded = max(1, count / row["cores"])
    return Run(
        learners=count,
        actors=more.pop("actors", 2 * count),
        update_seconds=row.get("ms", 0.0) / 1000,
        overhead_seconds=overhead / 1000 * crowded,
        allreduce=AllReduce(fixed / 1000, rank / 1000, byte / 1e9 * crowded),
        gradient_bytes=_SIMULATED_BYTES,
        turn_seconds=more.pop("turn_seconds", 0.001),
        learners_per_host=count,
    )._replace(**more)


def fit(rows: list[Row]) -> list[float]:
    """Return the costs that explain these rows best; a row has bytes or an update's ms."""

    def errors(costs: list[float]) -> list[float]:
        found = []
        for row in rows:
            run = single_host(row, costs)
            if "bytes" in row:
                count = row["learners"]
                seconds, measured = (
                    run.allreduce.seconds(row["bytes"], count, count),
                    row["seconds"],
                )
            else:
                slowest = run.update_seconds / straggler_efficiency(run.learners)
                seconds = exchange_end(run, slowest) + run.overhead_seconds
                measured = 1 / row["updates_per_second"]
            found.append(math.log(seconds / measured))
        return found

    return list(least_squares(errors, _FIRST_GUESS, bounds=(1e-6, math.inf)).x)


def simulated_rate(row: Row, costs: list[float], **more: Any) -> float:
    """Return the updates per second that the model has for a row."""
    run = single_host(row, costs, **more)
    return Simulation(run).simulate(100 * (run.update_seconds + 0.1)).updates_per_second


def print_errors(rows: list[Row], with_actors: list[Row]) -> None:
    """Print the model's errors where it was not fitted to the row."""
    print("| ms per update | learners | actors | updates/s | predicted | error |")
    print("|---|---|---|---|---|---|")
    few = min(with_actors, key=lambda row: row["actors"], default={})
    for row in [*rows, *with_actors]:
        more = {}
        if "actors" in row:  # the run with the fewest actors tells how long their turns take
            turn = few["actors"] / few["learners"] / few["updates_per_second"]
            more = {"actors": row["actors"], "turn_seconds": turn}
        if "ms" in row and row["learners"] > 1 and row is not few:
            others = [each for each in rows if each["learners"] != row["learners"]]
            rate, measured = simulated_rate(row, fit(others), **more), row["updates_per_second"]
            cells = [row["ms"], row["learners"], row.get("actors", "many"), f"{measured:.1f}"]
            cells += [f"{rate:.1f}", f"{rate / measured - 1:+.0%}"]
            print(f"| {' | '.join(map(str, cells))} |")


def print_cluster(given: argparse.Namespace, costs: list[float], wire: Row) -> None:
    """Print what a cluster of these costs would reach."""
    overhead, fixed, rank, byte = costs
    steps, link = given.batch_size * given.unroll_length, given.gbit * 125e6
    print("| learners | actors | steps/s | of one each | waits | exchange | core | link | lag |")
    print("|---|---|---|---|---|---|---|---|---|")
    for learners in given.learners:
        for actors in [count for count in given.actors if count >= learners]:
            run = Run(
                learners=learners,
                actors=actors,
                update_seconds=given.update_ms / 1000,
                overhead_seconds=overhead / 1000,
                allreduce=AllReduce(fixed / 1000, rank / 1000, byte / 1e9, given.hop_us / 1e6),
                gradient_bytes=given.gradient_mb * 1e6,
                turn_seconds=given.envs * given.unroll_length / given.actor_rate,
                batch_size=given.batch_size,
                queue_capacity=given.batch_size,
                envs=given.envs,
                message_bytes=given.envs * wire["unroll_bytes"],
                receive_seconds=given.envs * wire["receive"],
                parameter_bytes=given.gradient_mb * 1e6,
                serve_seconds=wire["serve"] / wire["parameter_bytes"] * given.gradient_mb * 1e6,
                min_pull_secs=given.gradient_mb * 1e6 / 12.5e6,  # a tenth of 1 Gbit/s
                actors_per_host=given.actors_per_host,
                link=link,
            )
            found = Simulation(run).simulate(400 * run.update_seconds + 20 * run.turn_seconds)
            rate = found.updates_per_second * learners * steps
            ideal = learners * steps / (run.update_seconds + run.overhead_seconds)
            shares = [rate / ideal, found.wait_share, found.exchange_share]
            shares += [found.ingest_share, found.link_share]
            cells = [str(learners), str(actors), f"{rate:,.0f}", *(f"{x:.2f}" for x in shares)]
            print(f"| {' | '.join(cells)} | {found.lag:.1f} |")


def main() -> None:
    """Fit, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    for name, value, text in (
        ("update_ms", 100.0, "ms of a learner's forward and backward pass"),
        ("actor_rate", 170.0, "steps/s of an actor"),
        ("gradient_mb", 6.75, "MB of gradients, and of parameters"),
        ("gbit", 10.0, "Gbit/s of a learner's link"),
        ("hop_us", 50.0, "microseconds from host to host"),
        ("batch_size", 32, "unrolls of a learner's update"),
        ("unroll_length", 20, "steps of an unroll"),
        ("envs", 16, "environments of an actor"),
        ("actors_per_host", 16, "actors that share a download of parameters"),
    ):
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{text} ({value})")
    parser.add_argument("--learners", type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--actors", type=numbers, default=[10, 100, 1000])
    given = parser.parse_args()
    record = json.loads(_RECORD.read_text())
    measured = record | record.get("sitting", {})
    if "wire" not in measured:
        parser.error(f"{_RECORD.name} has no costs of the wire: run scaling.py sitting --record")
    rows = [row for row in measured["simulated"] if row["allreduce"] != "grouped"]
    rows += measured.get("allreduce", [])
    cores = measured.get("host", {}).get("cores", _CORES)
    rows, with_actors = (
        [row | {"cores": cores} for row in part] for part in (rows, measured.get("actors", []))
    )
    print_errors(rows, with_actors)
    costs = fit(rows)
    print("overhead {:.1f} ms; all-reduce {:.1f} + {:.2f} N ms, {:.2f} ns a byte".format(*costs))
    print_cluster(given, costs, measured["wire"])


if __name__ == "__main__":
    main()
