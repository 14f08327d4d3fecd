"""How fast would a CSV of hosts train, what binds it, and what should be added?

    python sandbox/benchmarks/plan.py --save=cpu.json --level_name=...     on a host of each kind
    python sandbox/benchmarks/plan.py --workers_csv_path=workers.csv --level_name=... \\
        --measured='gpu*=gpu.json' --measured='*=cpu.json' --gbit=10

The first measures what a step costs on the machine it runs on, with that environment, network and
shape of run, in about a minute. The second predicts: for each worker set the steps/s that its
actors could supply, its learner could train on and the network could carry; which of them binds;
how many actors would feed the learner; and the steps/s of all sets together. Hosts of the CSV that
no --measured names are taken to be like this machine, which is then measured first.

All flags of experiment.py are understood; those that it matters to must be the same in both calls.
sandbox/planning.md holds predictions against real runs.
"""

import dataclasses
import fnmatch
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import host_costs
import throughput_model
from cost_model import Fit, Host, Plan, Set
from host_costs import Saved
from throughput_model import Limits, Prediction

from impala_mm.config import flags
from impala_mm.config.flags import flag
from impala_mm.config.settings import Config
from launcher.plan import workers_csv
from launcher.plan.workers_csv import Worker

ROOT = Path(__file__).resolve().parent.parent.parent
_LEVEL = "PongNoFrameskip-v4"  # where --level_name is not given
_BINDS = {
    "supply": "its actors bind",
    "learner": "its learner binds",
    "network": "its links bind",
    "cores": "the cores that they share bind",
}
_OF = {
    "learner": "its learner could train on",
    "network": "its links could carry",
    "cores": "the cores that they share could do",
}
_WOULD = {
    "supply": "would feed its learner",
    "learner": "would do",
    "network": "would fill them",
    "cores": "would keep them busy",
}


@dataclasses.dataclass(frozen=True)
class Planning:
    """Flags of this program besides those of experiment.py."""

    # fmt: off
    workers_csv_path: str = flag(
        "workers.csv.example", group="Plan",
        text="CSV of hosts: a row for each process, as run_experiment_mm_raw.py reads it.")
    measured: tuple[str, ...] = flag(
        (), group="Plan",
        text="HOST=FILE: the measurement of a host, of several by a pattern such as gpu*; may be "
             "repeated, the first that fits a host counts. Unset: this machine is measured, and "
             "stands for all.")
    gbit: float = flag(
        1.0, group="Plan", least=0.001,
        text="Gbit/s of each host's link, each way.")
    fit: str = flag(
        "", group="Plan",
        text="File of plan_check.py: by how much steps cost more in runs than measured. Unset: not "
             "at all.")
    json: bool = flag(False, group="Plan", text="Print JSON instead of words.")
    save: str = flag(
        "", group="Plan",
        text="Measure this machine, write that to a file, and end.")
    measured_seconds: float = flag(
        1.0, group="Plan", least=0.01,
        text="Seconds for which each part is measured.")
    # fmt: on


def main() -> None:
    """Reads the command line, and prints."""
    (ours, config), given = flags.parse(sys.argv, __doc__ or "", Planning, Config)
    if "level_name" not in given:
        config = dataclasses.replace(config, level_name=_LEVEL)
    if config.num_envs == flags.AUTO:
        flags.refuse("--num_envs=auto: give the number that it becomes (32 for pictures, else 16)")
    if config.inference == "auto":
        flags.refuse("--inference=auto: give the place that it becomes (the start lines say it)")
    say = lambda text: print(f"  {text}", file=sys.stderr, flush=True)  # noqa: E731
    if ours.save:
        host_costs.save(_measured_here(config, ours, say), ours.save)
        print(f"{ours.save} holds this machine's costs: --measured=HOST={ours.save}")
        return
    try:
        rows, notes = workers_csv.read(ours.workers_csv_path)
    except workers_csv.BadCsv as error:
        flags.refuse(str(error).replace("\n", "; "))
    for note in notes:
        say(f"note: {note}")
    plan = make(rows, config, ours, lambda: _measured_here(config, ours, say))
    found = throughput_model.predict(plan)
    print(json.dumps(as_json(plan, found), indent=1) if ours.json else words(plan, found))


def make(
    rows: list[Worker], config: Config, ours: Planning, measured_here: Callable[[], Saved]
) -> Plan:
    """The plan of these rows; asks for this machine's measurement where a host needs it."""
    balance = config.learner_assignment == "balance"
    worker_sets = sets(rows, balance)
    for number, own in enumerate(worker_sets):
        if not own.actors:
            flags.refuse(
                f"{ours.workers_csv_path}: learner {number} has no actors, and all others would "
                f"wait for it: there must be as many actors as learners at least"
            )
    files: dict[str, Saved] = {}
    patterns: dict[str, str] = {}
    for each in ours.measured:
        pattern, equals, path = each.partition("=")
        if not equals or not pattern or not path:
            flags.refuse(f"--measured={each}: write HOST=FILE, as in 'gpu*=gpu.json'")
        patterns.setdefault(pattern, path)
        files[path] = host_costs.load(path, config)
    names = dict.fromkeys(name for own in worker_sets for name in (own.learner, *own.actors))
    hosts: dict[str, Saved] = {}
    for name in names:
        fits = [path for pattern, path in patterns.items() if fnmatch.fnmatchcase(name, pattern)]
        if not fits and "" not in files:
            files[""] = measured_here()
        hosts[name] = files[fits[0] if fits else ""]
    place = getattr(config, "inference", "actor")
    shape = hosts[worker_sets[0].learner].shape._replace(
        inference="learner" if place == "learner" else "actor"
    )
    links = {name: Host(saved.kind, ours.gbit) for name, saved in hosts.items()}
    return Plan(links, worker_sets, shape, _fit(ours.fit))


def _measured_here(config: Config, ours: Planning, say: Callable[[str], None]) -> Saved:
    """Refuses, in experiment.py's own sentence, flags that it would refuse."""
    command = [sys.executable, str(ROOT / "experiment.py"), "--validate", *as_given(config)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
        flags.refuse((said or [f"error: {ran.stderr}"])[-1].removeprefix("error: "))
    say("measures this machine:")
    return host_costs.measure(config, ours.measured_seconds, say)


def as_given(config: Config) -> list[str]:
    """The flags that make it, as a command line has them."""
    values = {f.name: (getattr(config, f.name), f.default) for f in dataclasses.fields(config)}
    return [f"--{name}={value}" for name, (value, default) in values.items() if value != default]


def _fit(path: str) -> Fit:
    if not path:
        return Fit()
    try:
        return Fit(**json.loads(Path(path).read_text())["fit"])
    except OSError as error:
        flags.refuse(f"--fit={path}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        flags.refuse(f"--fit={path}: this holds no fit; plan_check.py --save={path} writes one")


def sets(rows: list[Worker], balance: bool) -> list[Set]:
    """The worker sets, as the frontend deals actors out; `balance`: they move where they are few.

    An actor moves as `impala_mm.balance` has it: to a learner that has none, or two fewer.
    """
    learners = [row for row in rows if row.job == "learner"]
    of: list[list[str]] = [[] for _ in learners]
    each = [row for row in rows if row.job == "actor" for _ in range(row.count)]
    for task, row in enumerate(each):
        of[row.learner if row.learner >= 0 else task % len(learners)].append(name(row))
    while balance and len(max(of, key=len)) > len(min(of, key=len)) + 1:
        min(of, key=len).append(max(of, key=len).pop())
    return [
        Set(name(row), {host: mine.count(host) for host in dict.fromkeys(mine)})
        for row, mine in zip(learners, of, strict=True)
    ]


def name(row: Worker) -> str:
    """Its host's; this machine's is one."""
    return "localhost" if row.ip == "127.0.0.1" else row.ip


def as_json(plan: Plan, found: Prediction) -> dict[str, Any]:
    """All figures; null where there is no such limit."""
    rows = []
    for own, limits, enough in zip(plan.sets, found.limits, found.enough, strict=True):
        rows.append(own._asdict() | finite(limits) | {"binds": limits.binds, "enough": enough})
    return {
        "sets": rows,
        "steps_per_second": found.total,
        "slowest": found.slowest,
        "fit": plan.fit._asdict(),
        "verdict": verdict(plan, found),
    }


def finite(limits: Limits) -> dict[str, float | None]:
    """By name; None where there is no such limit, for which JSON has no number."""
    return {name: v if math.isfinite(v) else None for name, v in limits._asdict().items()}


def words(plan: Plan, found: Prediction) -> str:
    """The same for people."""
    lines = []
    for number, (own, limits) in enumerate(zip(plan.sets, found.limits, strict=True)):
        now, hosts = sum(own.actors.values()), list(own.actors)
        where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        lines.append(f"worker set {number}: a learner on {own.learner}, {_actors(now)} on {where}")
        rows = [
            ("its actors could supply", limits.supply),
            ("its learner could train on", limits.learner),
            ("its links could carry", limits.network),
            ("the cores that they share", limits.cores),
        ]
        lines += [f"  {what:28}{_rate(rate)}" for what, rate in rows if math.isfinite(rate)]
        more = f"{_actors(found.enough[number])} {_WOULD[limits.binds]} (now {now})"
        lines.append(f"  {_BINDS[limits.binds]}; {more}")
    lines.append(f"predicted, all together:      {_rate(found.total)}")
    return "\n".join([*lines, verdict(plan, found)])


def verdict(plan: Plan, found: Prediction) -> str:
    """What binds all of it, and what to add, in a sentence."""
    limits, own = found.limits[found.slowest], plan.sets[found.slowest]
    needed, now = found.enough[found.slowest], sum(own.actors.values())
    several = len(plan.sets) > 1
    of = f" of set {found.slowest}" if several else ""
    if limits.binds == "supply":
        next_one = limits._replace(supply=math.inf)
        return (
            f"the actors{of} bind: {needed} with cores of their own (now {now}) would reach the "
            f"{next_one.rate:,.0f} steps/s that {_OF[next_one.binds]}"
        )
    if limits.binds == "learner":
        fewer = f", or {needed} of the {now} actors would do" if needed < now else ""
        return f"the learner{of} binds: a GPU, a faster one or another learner would help{fewer}"
    if limits.binds == "network":
        return (
            f"the network{of} binds: fewer bytes (--parameter_dtype=float16, a larger "
            f"--min_pull_secs), learners on other hosts or faster links would help"
        )
    return (
        f"the cores that actors and learner{of} share bind: another host would help, more actors "
        f"on this one would not"
    )


def _actors(count: int) -> str:
    return f"{count} actor{'s' * (count != 1)}"


def _rate(rate: float) -> str:
    return f"{rate:10,.0f} steps/s"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
