"""What is looked at before anything is started: a line each, and what to do where it is not so.

All machines are asked at the same time, each through the same calls (`Hosts`); what is the same on
many of them is one line.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.checks.finding import Finding
from launcher.checks.machine import Checkup
from launcher.checks.network import Links
from launcher.plan import process_plan
from launcher.plan.host_environment import Grounds
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote import parallel
from launcher.remote.hosts import Hosts


class Asked(NamedTuple):
    """What is to be checked."""

    workers: Sequence[Worker]
    processes: Sequence[Process]
    grounds: Grounds
    hosts: Hosts
    unreached: dict[str, str]  # why, by place
    config: LauncherConfig
    flags: dict[str, str]
    logdir: Path  # here
    check_free: Callable[[str], None]  # raises OSError where an address is taken


def check(asked: Asked) -> list[Finding]:
    """All of them."""
    learners = [worker for worker in asked.workers if worker.job == "learner"]
    rows: dict[str, list[Process]] = {}
    for process in (
        *process_plan.alone(learners, asked.config, asked.grounds),
        *asked.processes[1:],
    ):
        rows.setdefault(process.ground.place, []).append(process)
    checks: list[Callable[[], list[Finding]]] = [
        lambda: _flags(asked, learners[0]),
        lambda: _mpi(asked, learners),
    ]
    for place, processes in rows.items():
        if place in asked.unreached:
            continue
        own = [w for w in learners if asked.grounds(w).place == place]
        machine = Checkup(asked.hosts, place, processes, own, asked.config)
        ground = processes[0].ground
        logdir = asked.logdir
        if place:
            learns = asked.processes[0].ground.place == place
            logdir = Path(asked.processes[0].logdir if learns else ground.folder)
        checks += [
            lambda m=machine, o=own: m.ports(asked.check_free) if o else [],  # type: ignore[misc]
            machine.versions,
            lambda m=machine, d=logdir: m.disk(d),  # type: ignore[misc]
            machine.gpus,
            machine.tmux,
            *([machine.clock, machine.cores] if place else []),
        ]
    found = [finding for some in parallel.in_order(lambda each: each(), checks) for finding in some]
    ssh = [Finding("ssh", False, why, where=place) for place, why in asked.unreached.items()]
    ssh += [
        Finding("ssh", True, "answers", where=p) for p in rows if p and p not in asked.unreached
    ]
    found = [*ssh, *_differing(found), *_evaluators(asked, learners[0])]
    if not any(finding.good is False for finding in found):  # they need all the others
        found += Links(asked.hosts, asked.workers, asked.grounds, asked.config).check()
    return found


def failed(findings: Sequence[Finding]) -> bool:
    """Whether one of them is in the way of a start."""
    return any(finding.good is False for finding in findings)


def show(findings: Sequence[Finding]) -> None:
    """As a table; what many hosts have in common is one line of it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    words = {True: ("good", "green"), None: ("note", "yellow"), False: ("BAD", "bold red")}
    for finding, places in _merged(findings).items():
        word, style = words[finding.good]
        where = _where(places)
        remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
        table.add_row(Text(word, style=style), finding.what, Text(where + finding.said + remedy))
    console = Console()
    if not console.is_terminal:  # nobody's sentences are to be cut at 80 columns
        console.width = 200
    console.print(table)


def _merged(findings: Sequence[Finding]) -> dict[Finding, list[str]]:
    """Each but for where, and all places that it is of."""
    merged: dict[Finding, list[str]] = {}
    order = {what: i for i, what in enumerate(dict.fromkeys(each.what for each in findings))}
    for finding in sorted(findings, key=lambda each: order[each.what]):
        merged.setdefault(finding._replace(where=""), []).append(finding.where)
    return merged


def _where(places: Sequence[str]) -> str:
    others = [place for place in places if place]
    if not others:
        return ""
    here = " and here" if len(others) < len(places) else ""
    if len(others) > 3:
        return f"{len(others)} hosts{here}: "
    return f"{', '.join(others)}{here}: "


def _flags(asked: Asked, learner: Worker) -> list[Finding]:
    """As experiment.py itself judges them, where the first learner will run."""
    ground = asked.grounds(learner)
    if ground.place in asked.unreached or ground.missing:
        return []
    command = [ground.python, ground.experiment, "--validate", *process_plan.written(asked.flags)]
    code, printed = asked.hosts[ground.place].ask(
        process_plan.set_up(learner, asked.config, command),
        workdir=ground.workdir,
        environment=asked.processes[0].environment,
        seconds=120.0,
    )
    last = (printed.strip().splitlines() or ["it said nothing"])[-1]
    if code == 0:
        return [Finding("flags", True, last.removeprefix("valid: "))]
    return [Finding("flags", False, last.removeprefix("error: "), "mend the command")]


def _mpi(asked: Asked, learners: Sequence[Worker]) -> list[Finding]:
    """Of each learner's machine."""
    if len(learners) == 1:
        return [Finding("MPI", True, "not needed: there is one learner")]
    found = []
    for worker in learners:
        ground = asked.grounds(worker)
        if ground.place in asked.unreached or ground.missing:
            continue
        machine = Checkup(asked.hosts, ground.place, [], [worker], asked.config)
        found += machine.mpi(ground, len(learners))
    return list(dict.fromkeys(found))


def _evaluators(asked: Asked, learner: Worker) -> list[Finding]:
    """They follow checkpoints, which are on the first learner's machine."""
    where = asked.grounds(learner).place
    remedy = "give its row the ip of the first learner, or a file system that both share"
    return [
        Finding(
            "evaluator", None, f"the run's folder is on {where or 'this machine'}", remedy, place
        )
        for worker in asked.workers
        if worker.job == "evaluator" and (place := asked.grounds(worker).place) != where
    ]


def _differing(found: list[Finding]) -> list[Finding]:
    """Versions that are not the same everywhere are to be known."""
    versions = {finding.said for finding in found if finding.what == "versions" and finding.good}
    if len(versions) < 2:
        return found
    remedy = "the same everywhere is safer: --deploy"
    return [
        f._replace(good=None, remedy=remedy) if f.what == "versions" and f.good else f
        for f in found
    ]
