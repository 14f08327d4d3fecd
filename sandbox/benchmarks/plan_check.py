"""Are the planner's predictions true here? Fitted on two shapes of run, checked at six others.

    python sandbox/benchmarks/plan_check.py [--save=plan_check.json] [--repeats=3] [--seconds=20]
    python sandbox/benchmarks/plan_check.py --only=1,2,3                       some shapes alone

Each of SHAPES is measured part by part, as `plan.py` does it, and then run for real: experiment.py
with a learner and actors on this machine. So often, all shapes in turn, since machines that others
share are faster and slower by the minute: medians count, of parts and of runs. The first two decide
by how much a step costs more in a run than was measured, for actors and for the learner; the others
are predicted with that and held against the medians of their runs. It takes half an hour as it is;
Ctrl-C prints and saves what there is.
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
import plan as planner
import real_run
import throughput_model
from cost_model import Fit, Host, Kind, Plan, Set
from host_costs import Saved
from real_run import Ran

from impala_mm.config import flags
from impala_mm.config.settings import Config

_PONG = "--level_name=PongNoFrameskip-v4"


class Shape(NamedTuple):
    """Of a run on this machine."""

    name: str
    actors: int
    flags: tuple[str, ...]


def _shape(name: str, actors: int, envs: int, batch: int, length: int, *more: str) -> Shape:
    sizes = (f"--num_envs={envs}", f"--batch_size={batch}", f"--unroll_length={length}")
    return Shape(f"{name}, {actors} x {envs}, {batch} x {length}", actors, (*more, *sizes))


_SHALLOW = ("Shallow", (_PONG, "--agent_name=ShallowConvAgent"))
_SIMPLE = ("Simple", (_PONG, "--agent_name=SimpleConvNetAgent"))
# Named before they were measured: the first two are fitted, the others checked. In one a single
# actor leaves cores idle, in the other all are busy: two that fill the cores did not tell two
# factors apart, so these were chosen after a first sitting.
SHAPES = [
    _shape("Shallow", 1, 16, 8, 20, *_SHALLOW[1], "--env_groups=1"),
    _shape("Simple", 2, 32, 32, 20, *_SIMPLE[1]),
    _shape("Simple in turns", 1, 32, 8, 20, *_SIMPLE[1], "--env_groups=2"),
    _shape("Shallow", 2, 32, 32, 20, *_SHALLOW[1]),
    _shape("Shallow", 3, 16, 16, 40, *_SHALLOW[1]),
    _shape("catch", 2, 16, 8, 20, "--level_name=catch"),
    _shape("CartPole", 1, 32, 16, 40, "--level_name=CartPole-v1"),
    _shape("Simple, learner acts", 2, 32, 32, 20, *_SIMPLE[1], "--inference=learner"),
]
FITTED = 2


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--save", default="", help="file for all figures, and for plan.py --fit")
    parser.add_argument("--repeats", type=int, default=3, help="real runs of each shape")
    parser.add_argument("--seconds", type=float, default=20, help="of each, once it trains")
    parser.add_argument("--part_seconds", type=float, default=1.0, help="of each part, alone")
    parser.add_argument("--only", default="", help="numbers of shapes, from 1; default: all")
    given = parser.parse_args()
    if given.repeats < 1 or given.seconds <= 0 or given.part_seconds <= 0:
        parser.error("--repeats, --seconds and --part_seconds must be above 0")
    try:
        numbers = [int(n) for n in given.only.split(",") if n] or range(1, len(SHAPES) + 1)
        shapes = [SHAPES[number - 1] for number in numbers if number > 0 or parser.error("")]
    except (ValueError, IndexError):
        parser.error(f"--only={given.only}: numbers from 1 to {len(SHAPES)}, as in 1,2,5")
    measured, began, code = [Measured(shape, [], []) for shape in shapes], time.monotonic(), 0
    try:
        measure(measured, given.repeats, given.seconds, given.part_seconds)
    except KeyboardInterrupt:
        code = 130
    except real_run.Failed as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    if whole := [each for each in measured if each.ran]:
        record = check(whole) | {"seconds": time.monotonic() - began, "host": components.host()}
        print(table(record))
        if given.save:
            Path(given.save).write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(code)


class Measured(NamedTuple):
    """What was found of a shape, once a turn."""

    shape: Shape
    parts: list[Saved]
    ran: list[Ran]

    def plan(self) -> Plan:
        """Of what its parts typically cost."""
        kinds = zip(*(each.kind for each in self.parts), strict=True)
        host = Host(Kind(*map(statistics.median, kinds)))
        return Plan(
            {"localhost": host},
            [Set("localhost", {"localhost": self.shape.actors})],
            self.parts[0].shape,
        )

    @property
    def rate(self) -> float:
        """Steps per second that its runs typically had."""
        return statistics.median(each.steps for each in self.ran)


def measure(shapes: list[Measured], repeats: int, seconds: float, part_seconds: float) -> None:
    """Parts and runs of all, in turn."""
    began = time.monotonic()
    for turn in range(repeats):
        for shape, parts, ran in shapes:
            (config,), _ = flags.parse(["plan_check", *shape.flags], "", Config)
            parts.append(host_costs.measure(config, part_seconds))
            ran.append(run(shape, seconds))
            _say(
                f"{shape.name}: run {turn + 1} of {repeats}, {ran[-1].steps:,.0f} steps/s; others "
                f"took {ran[-1].others:.2f} cores; {(time.monotonic() - began) / 60:.0f} minutes"
            )


def check(shapes: list[Measured]) -> dict[str, Any]:
    """Fits the first, and predicts all."""
    plans = [each.plan() for each in shapes]
    fit = throughput_model.fitted(
        plans[:FITTED], [each.rate for each in shapes[:FITTED]], trust=1.0
    )
    rows = []
    for number, (each, plan) in enumerate(zip(shapes, plans, strict=True)):
        fitted = plan._replace(fit=fit)
        found = throughput_model.predict(fitted)
        rows.append(
            {
                "shape": each.shape.name,
                "flags": each.shape.flags,
                "actors": each.shape.actors,
                "fitted": number < FITTED,
                "rates": [ran.steps for ran in each.ran],
                "others": [ran.others for ran in each.ran],
                "measured": each.rate,
                "unfitted": throughput_model.predict(plan).total,
                "predicted": found.total,
                # Core-seconds, which hardly change with what else this machine does.
                "step": statistics.median(ran.cores / ran.steps for ran in each.ran),
                "predicted_step": a_step(fitted, found.total),
                "error": found.total / each.rate - 1,
                "limits": planner.finite(found.limits[0]),
                "binds": found.limits[0].binds,
                "kind": plan.hosts["localhost"].kind._asdict(),
                "bytes": plan.shape._asdict(),
            }
        )
    return {"fit": fit._asdict(), "shapes": rows}


def a_step(plan: Plan, rate: float) -> float:
    """Core-seconds of all that a step takes, on this machine alone."""
    (name,) = plan.hosts
    taken = plan.hosts[name].kind.cores - cost_model.left(plan, rate)[name]
    return taken / rate + cost_model.of_actor(plan, name, rate).cores


def run(shape: Shape, seconds: float) -> Ran:
    """A real run of it, some seconds of it measured."""
    address = f"--learner_hosts={real_run.free_address()}"
    told = [*shape.flags, f"--num_actors={shape.actors}", address]
    return real_run.run([*told, "--total_environment_frames=1e12"], seconds)


def table(record: dict[str, Any]) -> str:
    """For people, and for the page."""
    fit, host = Fit(**record["fit"]), record["host"]
    lines = [
        f"{host['cores']} cores, {host['processor']}; in a run an actor's step costs "
        f"{fit.actor:.2f} times what was measured, a learner's {fit.learner:.2f} times",
        "",
        "| network, actors x environments, batch | steps/s | predicted | error | binds | core-us a "
        "step | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["shapes"]:
        error = "fitted" if row["fitted"] else f"{row['error']:+.0%}"
        lines.append(
            f"| {row['shape']} | {row['measured']:,.0f} | {row['predicted']:,.0f} | {error} | "
            f"{row['binds']} | {row['step'] * 1e6:,.0f} | {row['predicted_step'] * 1e6:,.0f} |"
        )
    if max(max(row["others"]) for row in record["shapes"]) > 0.2:
        lines += ["", "others used this machine meanwhile: these figures say little"]
    checked = [abs(row["error"]) for row in record["shapes"] if not row["fitted"]]
    if checked:
        lines += ["", f"largest error of those that were not fitted: {max(checked):.0%}"]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
