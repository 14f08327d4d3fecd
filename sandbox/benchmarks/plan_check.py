"""Check the planner's predictions on this machine: fit them on two runs, compare six others.

    python sandbox/benchmarks/plan_check.py [--save=plan_check.json] [--repeats=3] [--seconds=20]
    python sandbox/benchmarks/plan_check.py --only=1,2,3                       only some scenarios

The parts of each of SCENARIOS are measured as in `plan.py`, and then the scenario is run for real:
experiment.py with a learner and actors on this machine. All scenarios take turns --repeats times,
and medians count, because the speed of a shared machine varies from minute to minute. The first
two scenarios determine the factors by which a step costs more in a run than was measured, for
actors and for the learner; the others are predicted with these factors and compared with the
medians of their runs. This takes half an hour by default; Ctrl-C prints and saves what is complete.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import components
import cost_model
import host_costs
import real_run
import throughput_model
from cost_model import ClusterPlan, CostFactors, Host, HostCosts, WorkerSet
from host_costs import HostMeasurement
from plan import finite_limits
from progress import print_progress
from real_run import RunMeasurement

from impala_mm.config import command_line
from impala_mm.config.settings import Config

_PONG = "--level_name=PongNoFrameskip-v4"


class Scenario(NamedTuple):
    """A run on this machine that is predicted and measured."""

    name: str
    actors: int
    flags: tuple[str, ...]


def _scenario(name: str, actors: int, envs: int, batch: int, length: int, *more: str) -> Scenario:
    sizes = (f"--num_envs={envs}", f"--batch_size={batch}", f"--unroll_length={length}")
    return Scenario(f"{name}, {actors} x {envs}, {batch} x {length}", actors, (*more, *sizes))


_SHALLOW = ("Shallow", (_PONG, "--agent_name=ShallowConvAgent"))
_SIMPLE = ("Simple", (_PONG, "--agent_name=SimpleConvNetAgent"))
# The first two are fitted, the others are checked; all were chosen before they were measured. In
# the first a single actor leaves cores idle, in the second all cores are busy: in an earlier
# attempt, two scenarios that both used all cores could not determine two separate factors.
SCENARIOS = [
    _scenario("Shallow", 1, 16, 8, 20, *_SHALLOW[1], "--env_groups=1"),
    _scenario("Simple", 2, 32, 32, 20, *_SIMPLE[1]),
    _scenario("Simple in turns", 1, 32, 8, 20, *_SIMPLE[1], "--env_groups=2"),
    _scenario("Shallow", 2, 32, 32, 20, *_SHALLOW[1]),
    _scenario("Shallow", 3, 16, 16, 40, *_SHALLOW[1]),
    _scenario("catch", 2, 16, 8, 20, "--level_name=catch"),
    _scenario("CartPole", 1, 32, 16, 40, "--level_name=CartPole-v1"),
    _scenario("Simple, learner acts", 2, 32, 32, 20, *_SIMPLE[1], "--inference=learner"),
]
FITTED_COUNT = 2


def main() -> None:
    """Parse the command line, measure the scenarios and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--save", default="", help="file to write all figures to, for plan.py --fit"
    )
    parser.add_argument("--repeats", type=int, default=3, help="real runs of each scenario (3)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="measured seconds of each run (20)"
    )
    parser.add_argument(
        "--part_seconds",
        type=float,
        default=1.0,
        help="seconds for which each part is measured (1)",
    )
    parser.add_argument("--only", default="", help="numbers of scenarios, from 1 (all)")
    args = parser.parse_args()
    if args.repeats < 1 or args.seconds <= 0 or args.part_seconds <= 0:
        parser.error("--repeats, --seconds and --part_seconds must be above 0")
    try:
        numbers = [int(n) for n in args.only.split(",") if n] or range(1, len(SCENARIOS) + 1)
        scenarios = [SCENARIOS[number - 1] for number in numbers if number > 0 or parser.error("")]
    except (ValueError, IndexError):
        parser.error(f"--only={args.only}: give numbers from 1 to {len(SCENARIOS)}, such as 1,2,5")
    results, began, code = (
        [ScenarioResults(scenario, [], []) for scenario in scenarios],
        time.monotonic(),
        0,
    )
    try:
        measure_scenarios(results, args.repeats, args.seconds, args.part_seconds)
    except KeyboardInterrupt:
        code = 130
    except real_run.RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    if complete := [each for each in results if each.runs]:
        record = check_predictions(complete) | {
            "seconds": time.monotonic() - began,
            "host": components.describe_host(),
        }
        print(format_table(record))
        if args.save:
            Path(args.save).write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(code)


class ScenarioResults(NamedTuple):
    """The measurements and the runs of a scenario, one of each per repeat."""

    scenario: Scenario
    measurements: list[HostMeasurement]
    runs: list[RunMeasurement]

    def plan(self) -> ClusterPlan:
        """Make the plan from the medians of the measured costs."""
        costs = zip(*(each.costs for each in self.measurements), strict=True)
        host = Host(HostCosts(*map(statistics.median, costs)))
        return ClusterPlan(
            {"localhost": host},
            [WorkerSet("localhost", {"localhost": self.scenario.actors})],
            self.measurements[0].shape,
        )

    @property
    def rate(self) -> float:
        """The median of the runs' steps per second."""
        return statistics.median(each.steps for each in self.runs)


def measure_scenarios(
    results: list[ScenarioResults], repeats: int, seconds: float, part_seconds: float
) -> None:
    """Measure the parts and a run of all scenarios in turn, `repeats` times."""
    began = time.monotonic()
    for turn in range(repeats):
        for scenario, measurements, runs in results:
            (config,), _ = command_line.parse(["plan_check", *scenario.flags], "", Config)
            measurements.append(host_costs.measure(config, part_seconds))
            runs.append(run_scenario(scenario, seconds))
            print_progress(
                f"{scenario.name}: run {turn + 1} of {repeats}, {runs[-1].steps:,.0f} steps/s; "
                f"other programs used {runs[-1].others:.2f} cores; "
                f"{(time.monotonic() - began) / 60:.0f} min elapsed"
            )


def check_predictions(results: list[ScenarioResults]) -> dict[str, Any]:
    """Fit the factors on the first of SCENARIOS, and predict all.

    Without all of these, no factor is known, and each is 1.
    """
    plans = [each.plan() for each in results]
    first = SCENARIOS[:FITTED_COUNT]
    fitted = [(p, r.rate) for p, r in zip(plans, results, strict=True) if r.scenario in first]
    factors = CostFactors()
    if len(fitted) == len(first):
        factors = throughput_model.fit_cost_factors(
            [plan for plan, _ in fitted], [rate for _, rate in fitted], prior_weight=1.0
        )
    rows = []
    for each, plan in zip(results, plans, strict=True):
        fitted_plan = plan._replace(factors=factors)
        prediction = throughput_model.predict(fitted_plan)
        rows.append(
            {
                "shape": each.scenario.name,
                "flags": each.scenario.flags,
                "actors": each.scenario.actors,
                "fitted": len(fitted) == len(first) and each.scenario in first,
                "rates": [run.steps for run in each.runs],
                "others": [run.others for run in each.runs],
                "measured": each.rate,
                "unfitted": throughput_model.predict(plan).total_rate,
                "predicted": prediction.total_rate,
                # Core-seconds, which hardly depend on other load on this machine.
                "step": statistics.median(run.cores / run.steps for run in each.runs),
                "predicted_step": predicted_core_seconds(fitted_plan, prediction.total_rate),
                "error": prediction.total_rate / each.rate - 1,
                "limits": finite_limits(prediction.limits[0]),
                "binds": prediction.limits[0].bottleneck,
                "kind": plan.hosts["localhost"].costs._asdict(),
                "bytes": plan.shape._asdict(),
            }
        )
    return {"fit": factors._asdict(), "shapes": rows}


def predicted_core_seconds(plan: ClusterPlan, rate: float) -> float:
    """Return the predicted core-seconds of all processes per step, if one machine runs them."""
    (name,) = plan.hosts
    taken = plan.hosts[name].costs.cores - cost_model.cores_left_for_actors(plan, rate)[name]
    return taken / rate + cost_model.actor_step_cost(plan, name, rate).core_seconds


def run_scenario(scenario: Scenario, seconds: float) -> RunMeasurement:
    """Measure some seconds of a real run."""
    address = f"--learner_hosts={real_run.free_address()}"
    flags = [*scenario.flags, f"--num_actors={scenario.actors}", address]
    return real_run.measure_run(flags, seconds)


def format_table(record: dict[str, Any]) -> str:
    """Return the table, in Markdown."""
    factors, host = CostFactors(**record["fit"]), record["host"]
    lines = [
        f"{host['cores']} cores, {host['processor']}; in a run, a step costs an actor "
        f"{factors.actor:.2f} times its measured cost, a learner {factors.learner:.2f} times",
        "",
        "| network, actors x environments, batch | steps/s | predicted | error | bottleneck | "
        "core-us per step | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["shapes"]:
        error = "fitted" if row["fitted"] else f"{row['error']:+.0%}"
        lines.append(
            f"| {row['shape']} | {row['measured']:,.0f} | {row['predicted']:,.0f} | {error} | "
            f"{row['binds']} | {row['step'] * 1e6:,.0f} | {row['predicted_step'] * 1e6:,.0f} |"
        )
    if max(max(row["others"]) for row in record["shapes"]) > 0.2:
        lines += ["", "other programs used this machine: these figures are unreliable"]
    checked = [abs(row["error"]) for row in record["shapes"] if not row["fitted"]]
    if checked:
        lines += ["", f"largest error of the scenarios that were not fitted: {max(checked):.0%}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
