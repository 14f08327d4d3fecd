r"""Predict a cluster's throughput and bottleneck from a CSV of hosts.

    python sandbox/benchmarks/plan.py --save=cpu.json --level_name=...     on a host of each kind
    python sandbox/benchmarks/plan.py --workers_csv_path=workers.csv --level_name=... \\
        --measured='gpu*=gpu.json' --measured='*=cpu.json' --gbit=10

The first command measures what a step costs on the machine on which it runs, in two short trainings
with these flags; it takes about a minute. The second command predicts for each worker set the
steps/s that its actors can supply, its learner can train on and the network can carry; the
bottleneck; the number of actors that the learner needs; and the steps/s of all sets together. For
hosts of the CSV that match no --measured, this machine is measured first.

All flags of experiment.py are accepted; those that affect the costs must be the same in both
commands. sandbox/planning.md has the model, and compares predictions with real runs.
"""

import dataclasses
import fnmatch
import json
import math
import sys
from typing import Any

import cluster_model
import components
import host_costs
import real_run
from cluster_model import ClusterPlan, Host, Prediction, RateLimits, WorkerSet
from host_costs import HostMeasurement
from progress import print_progress

from impala_mm.config import command_line, flags
from impala_mm.config.flags import flag
from impala_mm.config.settings import Config
from launcher.plan import workers_csv
from launcher.plan.workers_csv import Worker, first_learners

_LEVEL = "PongNoFrameskip-v4"  # the level if --level_name is not given
_BOTTLENECK_TEXT = {
    "supply": "actors",
    "learner": "learner",
    "network": "network",
    "cores": "cores that actors and learner share",
}
_NEXT_LIMIT_TEXT = {
    "learner": "the learner can train on",
    "network": "the network can carry",
    "cores": "the shared cores can compute",
}


@dataclasses.dataclass(frozen=True)
class PlanFlags:
    """Flags of this program in addition to those of experiment.py."""

    # fmt: off
    workers_csv_path: str = flag(
        "workers.csv.example", group="Plan",
        text="CSV of hosts: a row for each process, as run_experiment_mm_raw.py reads it.")
    measured: tuple[str, ...] = flag(
        (), group="Plan",
        text="HOST=FILE: the measurement for a host, or for all hosts that match a pattern such as "
             "gpu*. May be repeated; the first that matches a host counts. Unset: this machine is "
             "measured and represents all hosts.")
    gbit: float = flag(
        1.0, group="Plan", least=0.001,
        text="Gbit/s of each host's link in each direction.")
    json: bool = flag(False, group="Plan", text="Print JSON instead of text.")
    save: str = flag(
        "", group="Plan",
        text="Measure this machine, write the costs to this file, and exit.")
    measured_seconds: float = flag(
        15.0, group="Plan", least=1,
        text="Seconds for which each of two runs is measured.")
    # fmt: on


def main() -> None:
    """Parse the command line, and print a prediction or save a measurement."""
    (plan_flags, config), given = command_line.parse(sys.argv, __doc__ or "", PlanFlags, Config)
    if "level_name" not in given:
        config = dataclasses.replace(config, level_name=_LEVEL)
    components.refuse_auto(config)
    if config.inference == "auto":
        flags.refuse(
            "--inference=auto: give actor or learner; a run's first lines print what auto means"
        )
    try:
        if plan_flags.save:
            host_costs.save(
                host_costs.measure(config, plan_flags.measured_seconds), plan_flags.save
            )
            print(f"wrote this machine's costs; use them with --measured=HOST={plan_flags.save}")
            return
        rows, notes = workers_csv.read(plan_flags.workers_csv_path)
        for note in notes:
            print_progress(f"note: {note}")
        plan = make_plan(rows, config, plan_flags)
    except workers_csv.BadCsv as error:
        flags.refuse(str(error).replace("\n", "; "))
    except real_run.RunFailed as error:
        errors = [line for line in str(error).splitlines() if line.startswith("error: ")]
        flags.refuse(errors[-1].removeprefix("error: ") if errors else str(error))
    prediction = cluster_model.predict(plan)
    print(
        json.dumps(to_json(plan, prediction), indent=1)
        if plan_flags.json
        else format_prediction(plan, prediction)
    )


def make_plan(rows: list[Worker], config: Config, plan_flags: PlanFlags) -> ClusterPlan:
    """Make the plan for these rows; measure this machine if a host has no measurement."""
    worker_sets = deal_worker_sets(rows, config.learner_assignment == "balance")
    for number, worker_set in enumerate(worker_sets):
        if not worker_set.actors:
            flags.refuse(
                f"{plan_flags.workers_csv_path}: learner {number} has no actors, so the other "
                f"learners would wait for it; add actors until there is one per learner"
            )
    measured: dict[str, HostMeasurement] = {}  # by pattern; the first that fits counts
    for each in plan_flags.measured:
        pattern, _, path = each.partition("=")
        if not pattern or not path:
            flags.refuse(
                f"--measured={each}: it must have the form HOST=FILE, such as 'gpu*=gpu.json'"
            )
        measured.setdefault(pattern, host_costs.load(path, config))
    hosts: dict[str, HostMeasurement] = {}
    for name in [name for each in worker_sets for name in (each.learner, *each.actors)]:
        fitting = [p for p in measured if fnmatch.fnmatchcase(name, p)]
        if not fitting:
            fitting = ["*"]
            measured["*"] = host_costs.measure(config, plan_flags.measured_seconds)
        hosts[name] = measured[fitting[0]]
    return ClusterPlan(
        {name: Host(measurement.costs, plan_flags.gbit) for name, measurement in hosts.items()},
        worker_sets,
        hosts[worker_sets[0].learner].shape,
    )


def deal_worker_sets(rows: list[Worker], balance: bool) -> list[WorkerSet]:
    """Assign actors to learners as the frontend does; with `balance`, even out their numbers.

    An actor moves by the rule of `transport/connected_actors.py`: to a learner that has none,
    or at least two fewer.
    """
    learners = [row for row in rows if row.job == "learner"]
    actor_hosts: list[list[str]] = [[] for _ in learners]
    for row, number in first_learners(rows):
        actor_hosts[number].append(host_name(row))
    while balance and len(max(actor_hosts, key=len)) > len(min(actor_hosts, key=len)) + 1:
        min(actor_hosts, key=len).append(max(actor_hosts, key=len).pop())
    return [
        WorkerSet(host_name(row), {host: hosts.count(host) for host in dict.fromkeys(hosts)})
        for row, hosts in zip(learners, actor_hosts, strict=True)
    ]


def host_name(row: Worker) -> str:
    """Return the name of a row's host; all addresses of this machine have one name."""
    return "localhost" if row.ip == "127.0.0.1" else row.ip


def to_json(plan: ClusterPlan, prediction: Prediction) -> dict[str, Any]:
    """Return all figures as a dictionary for JSON; an infinite limit is null."""
    rows = []
    for worker_set, limits, actors_needed in zip(
        plan.sets, prediction.limits, prediction.actors_needed, strict=True
    ):
        rows.append(
            worker_set._asdict()
            | finite_limits(limits)
            | {"binds": limits.bottleneck, "enough": actors_needed}
        )
    return {
        "sets": rows,
        "steps_per_second": prediction.total_rate,
        "slowest": prediction.slowest_set,
        "verdict": describe_bottleneck(plan, prediction),
    }


def finite_limits(limits: RateLimits) -> dict[str, float | None]:
    """Return the limits by name; None for an infinite limit, which JSON cannot represent."""
    return {name: v if math.isfinite(v) else None for name, v in limits._asdict().items()}


def format_prediction(plan: ClusterPlan, prediction: Prediction) -> str:
    """Return the prediction as text for people."""
    lines = []
    for number, (worker_set, limits) in enumerate(zip(plan.sets, prediction.limits, strict=True)):
        now, hosts = int(sum(worker_set.actors.values())), list(worker_set.actors)
        where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        lines.append(
            f"worker set {number}: a learner on {worker_set.learner}, {_format_actors(now)} on "
            f"{where}"
        )
        rows = [
            ("actors can supply", limits.supply),
            ("learner can train on", limits.learner),
            ("network can carry", limits.network),
            ("shared cores can compute", limits.cores),
        ]
        lines += [f"  {what:28}{_format_rate(rate)}" for what, rate in rows if math.isfinite(rate)]
        needed = _format_actors(prediction.actors_needed[number])
        bottleneck = _BOTTLENECK_TEXT[limits.bottleneck]
        lines.append(f"  bottleneck: {bottleneck}; about {needed} needed ({now} now)")
    lines.append(f"predicted for all sets:       {_format_rate(prediction.total_rate)}")
    return "\n".join([*lines, describe_bottleneck(plan, prediction)])


def describe_bottleneck(plan: ClusterPlan, prediction: Prediction) -> str:
    """Describe the bottleneck in one sentence, with what would help."""
    slowest = prediction.slowest_set
    limits, needed = prediction.limits[slowest], prediction.actors_needed[slowest]
    now = int(sum(plan.sets[slowest].actors.values()))
    bottleneck = f"bottleneck: {_BOTTLENECK_TEXT[limits.bottleneck]}"
    bottleneck += f" of set {slowest}" if len(plan.sets) > 1 else ""
    if limits.bottleneck == "supply":
        next_one = limits._replace(supply=math.inf)
        return (
            f"{bottleneck}; {needed} actors with cores of their own ({now} now) would reach the "
            f"{next_one.rate:,.0f} steps/s that {_NEXT_LIMIT_TEXT[next_one.bottleneck]}"
        )
    if limits.bottleneck == "learner":
        fewer = f"; {needed} of the {now} actors would suffice" if needed < now else ""
        return f"{bottleneck}; a GPU, a faster one or another learner would help{fewer}"
    if limits.bottleneck == "network":
        return (
            f"{bottleneck}; fewer bytes (--parameter_dtype=float16, a larger "
            f"--min_pull_secs), learners on other hosts or faster links would help"
        )
    if needed > now:
        return f"{bottleneck}; {needed} actors ({now} now) would use the cores that are idle"
    return f"{bottleneck}; another host would help, more actors on this one would not"


def _format_actors(count: int) -> str:
    return f"{count} actor{'s' * (count != 1)}"


def _format_rate(rate: float) -> str:
    return f"{rate:10,.0f} steps/s"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
