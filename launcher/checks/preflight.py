"""Runs all checks before a run starts, and prints each result with how to fix a failure.

All machines are checked at the same time through the same calls (`Hosts`). A result that several
of them share is printed once.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from impala_mm.config.printable import escape
from impala_mm.transport.rounds import why_too_few, why_unfit
from launcher.checks.finding import Finding
from launcher.checks.machine import MachineChecks
from launcher.checks.network import NetworkChecks
from launcher.node.task import START_VARIABLE
from launcher.plan import process_plan
from launcher.plan.host_environment import InstallationOf
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker, first_learners
from launcher.remote import parallel
from launcher.remote.hosts import Hosts
from launcher.running.console import make_console

# Seconds that the check of the environments may delay a start. It runs while TensorFlow is loaded.
_CHECK_ENV_SECS = 2


class PlannedRun(NamedTuple):
    """A run that is to be checked before it starts."""

    workers: Sequence[Worker]
    processes: Sequence[Process]
    installation_of: InstallationOf
    hosts: Hosts
    unreached: dict[str, str]  # hosts that cannot be reached, and why
    config: LauncherConfig
    flags: dict[str, str]
    logdir: Path  # the run's folder on this machine
    check_free: Callable[[str], None]  # raises OSError if an address is in use
    make_certificates: Callable[[Sequence[str]], str]  # see `Request`
    round_columns: int = 0  # see `Request`


def check_run(planned: PlannedRun) -> list[Finding]:
    """Run all checks of a planned run; those between machines only if all others passed."""
    learners = [worker for worker in planned.workers if worker.job == "learner"]
    rows: dict[str, list[Process]] = {}
    for process in (
        *process_plan.make_single_learners(learners, planned.config, planned.installation_of),
        *planned.processes[1:],
    ):
        rows.setdefault(process.installation.host_id, []).append(process)
    bind_address = planned.flags.get("bind_address", "")
    checks: list[Callable[[], list[Finding]]] = [
        lambda: _check_flags(planned, learners[0]),
        lambda: _check_mpi(planned, learners),
    ]
    for host_id, processes in rows.items():
        if host_id in planned.unreached:
            continue
        own = [w for w in learners if planned.installation_of(w).host_id == host_id]
        machine = MachineChecks(
            *(planned.hosts, host_id, processes, own, planned.config), bind_address
        )
        installation = processes[0].installation
        logdir = planned.logdir
        if host_id:
            learns = planned.processes[0].installation.host_id == host_id
            logdir = Path(planned.processes[0].logdir if learns else installation.folder)
        checks += [
            lambda m=machine, o=own: m.check_ports(planned.check_free) if o else [],  # type: ignore[misc]
            machine.check_versions,
            lambda m=machine, d=logdir: m.check_disk(d),  # type: ignore[misc]
            machine.check_gpus,
            machine.check_tmux,
            machine.check_logout,
            *([machine.check_clock, machine.check_cores] if host_id else []),
        ]
    found = [
        finding for some in parallel.map_ordered(lambda each: each(), checks) for finding in some
    ]
    ssh = [
        Finding("ssh", False, why, host_id=host_id) for host_id, why in planned.unreached.items()
    ]
    ssh += [
        Finding("ssh", True, "connected", host_id=host_id)
        for host_id in rows
        if host_id and host_id not in planned.unreached
    ]
    found = [*ssh, *_mark_different_versions(found), *_check_evaluators(planned, learners[0])]
    found += check_rounds(planned.workers, planned.round_columns)
    found += check_assignment(planned.workers, planned.flags)
    if not has_failed(found):
        found += NetworkChecks(
            *(planned.hosts, planned.workers, planned.installation_of, planned.config),
            *(planned.make_certificates, bind_address),
        ).check()
    return found


def has_failed(findings: Sequence[Finding]) -> bool:
    """Return whether a check failed, so that the run cannot start."""
    return any(finding.ok is False for finding in findings)


def show_findings(findings: Sequence[Finding]) -> None:
    """Print findings as a table; a finding that several hosts share is printed once."""
    table = Table(box=None, pad_edge=False, show_header=False)
    words = {True: ("passed", "green"), None: ("note", "yellow"), False: ("FAILED", "bold red")}
    for finding, host_ids in _merge(findings).items():
        word, style = words[finding.ok]
        prefix = _host_prefix(host_ids)
        remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
        table.add_row(
            Text(word, style=style),
            finding.subject,
            Text(escape(prefix + finding.message + remedy)),
        )
    make_console().print(table)


def _merge(findings: Sequence[Finding]) -> dict[Finding, list[str]]:
    """Map each finding, without its host, to the ids of all hosts that share it."""
    merged: dict[Finding, list[str]] = {}
    order = {what: i for i, what in enumerate(dict.fromkeys(each.subject for each in findings))}
    for finding in sorted(findings, key=lambda each: order[each.subject]):
        merged.setdefault(finding._replace(host_id=""), []).append(finding.host_id)
    return merged


def _host_prefix(host_ids: Sequence[str]) -> str:
    others = [host_id for host_id in host_ids if host_id]
    if not others:
        return ""
    local = " and this machine" if len(others) < len(host_ids) else ""
    if len(others) > 3:
        return f"{len(others)} hosts{local}: "
    return f"{', '.join(others)}{local}: "


def _check_flags(planned: PlannedRun, learner: Worker) -> list[Finding]:
    """Check the flags of training by `experiment.py --validate` on the first learner's host."""
    installation = planned.installation_of(learner)
    if installation.host_id in planned.unreached or installation.missing:
        return []
    command = [
        installation.python,
        installation.experiment,
        "--validate",
        f"--check_env_secs={_CHECK_ENV_SECS}",  # a later flag, the user's own, replaces it
        *process_plan.flag_arguments(planned.flags),
    ]
    code, printed = planned.hosts[installation.host_id].run_program(
        process_plan.with_setup(learner, planned.config, command),
        workdir=installation.workdir,
        # As a process of the frontend, it accepts the flags of evaluators.
        environment=planned.processes[0].environment | {START_VARIABLE: "check"},
        seconds=120.0,
    )
    if printed.startswith(f"{installation.workdir}: "):  # it does not exist
        return []  # the check of the machine reports it
    lines = printed.strip().splitlines() or ["no output"]
    warnings = [
        Finding("flags", None, line.removeprefix("warning: "))
        for line in lines
        if line.startswith("warning: ")
    ]
    if code == 0:
        return [Finding("flags", True, lines[-1].removeprefix("valid: ")), *warnings]
    tracebacks = [i for i, line in enumerate(lines) if line.startswith("Traceback ")]
    if tracebacks:  # of the code of an environment
        message = "\n".join(lines[tracebacks[0] :])
        remedy = "correct the code at the last line named"
    else:
        message, remedy = lines[-1].removeprefix("error: "), "correct the command line"
    return [Finding("flags", False, message, remedy), *warnings]


def _check_mpi(planned: PlannedRun, learners: Sequence[Worker]) -> list[Finding]:
    """Check Horovod and mpirun on each learner's machine, if there is more than one learner."""
    if len(learners) == 1:
        return [Finding("MPI", True, "not needed for one learner")]
    found = []
    for worker in learners:
        installation = planned.installation_of(worker)
        if installation.host_id in planned.unreached or installation.missing:
            continue
        machine = MachineChecks(planned.hosts, installation.host_id, [], [worker], planned.config)
        found += machine.check_mpi(installation, len(learners))
    return list(dict.fromkeys(found))


def check_rounds(workers: Sequence[Worker], columns: int) -> list[Finding]:
    """Check that the actors can fill every learner's rounds of `columns` unrolls; 0: no rounds.

    --validate has checked the number of environments that the flags give.
    """
    actors = [worker for worker in workers if worker.job == "actor"] if columns else []
    learners = sum(worker.job == "learner" for worker in workers)
    found = [
        Finding("rounds", False, f"row {worker.line} ({worker.ip}), column num_envs: {why}")
        for worker in actors
        if worker.num_envs and (why := why_unfit(columns, worker.num_envs))
    ]
    if why := why_too_few(learners, sum(worker.count for worker in actors)):
        remedy = f"give the CSV at least {learners} actors, by more rows or the column count"
        found.append(Finding("rounds", False, why, remedy))
    return found


def check_assignment(workers: Sequence[Worker], flags: Mapping[str, str]) -> list[Finding]:
    """Check that each learner has an actor, where the flags let actors stay with their first."""
    stay = {"learner_assignment": "fixed", "inference": "learner"}
    if not any(flags.get(name) == value for name, value in stay.items()):
        return []
    learners = sum(worker.job == "learner" for worker in workers)
    used = {number for _, number in first_learners(workers)}
    return [
        Finding(
            "actors",
            False,
            f"learner {number} has none, and actors stay with their learner, so that all learners "
            f"would wait for ever",
            f"give a row of the CSV learner={number}, or let actors move: "
            f"--learner_assignment=balance, --inference=actor",
        )
        for number in range(learners)
        if used and number not in used
    ]


def _check_evaluators(planned: PlannedRun, learner: Worker) -> list[Finding]:
    """Note evaluators on another machine than the first learner's, which writes the checkpoints."""
    learners_host_id = planned.installation_of(learner).host_id
    message = (
        f"the evaluator reads checkpoints, which the learner writes on "
        f"{learners_host_id or 'this machine'}"
    )
    remedy = "give its row the first learner's ip, or put --logdir on a file system that both share"
    return [
        Finding("evaluator", None, message, remedy, host_id)
        for worker in planned.workers
        if worker.job == "evaluator"
        and (host_id := planned.installation_of(worker).host_id) != learners_host_id
    ]


def _mark_different_versions(findings: list[Finding]) -> list[Finding]:
    """Turn the results about versions into notes, if the hosts' versions differ."""
    versions = {
        finding.message for finding in findings if finding.subject == "versions" and finding.ok
    }
    if len(versions) < 2:
        return findings
    remedy = "--deploy installs the same versions on all hosts"
    return [
        f._replace(ok=None, remedy=remedy) if f.subject == "versions" and f.ok else f
        for f in findings
    ]
