"""The definition of a check: a function of a planned run, or of one of its hosts, by a subject.

    @check("NFS", Scope.HOSTS)
    def check_nfs(host: CheckedHost) -> Iterable[Finding]:
        code, printed = host.run_program(["mountpoint", "/data"])
        if code:
            yield failed(printed.strip(), "mount it: sudo mount /data")

`preflight` runs all checks that are registered, those of modules of the user (`--import`) too.
"""

import dataclasses
import enum
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from impala_mm.config.registry import Registry
from launcher.hosts.hosts import Hosts
from launcher.plan import process_plan
from launcher.plan.host_environment import InstallationOf
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker

_PROGRAM_SECONDS = 120.0  # timeout of a program that a check runs


class Scope(enum.Enum):
    """The object of a check, in the order in which results are printed."""

    RUN = enum.auto()  # the whole run: the function gets a `PlannedRun`
    LEARNER_HOSTS = enum.auto()  # each host with a learner: the function gets a `CheckedHost`
    HOSTS = enum.auto()  # each host
    REMOTE_HOSTS = enum.auto()  # each host but this machine
    BETWEEN_HOSTS = enum.auto()  # the run again, if it has several hosts and all else passed


class Finding(NamedTuple):
    """The result of one check: one line of the table that `--check` prints."""

    ok: bool | None  # None: the run can start, but the user should know the message
    message: str
    remedy: str = ""  # how to fix it
    subject: str = ""  # empty: that of the check
    host_id: str = ""  # the host that was checked; empty: this machine, or the run itself


def passed(message: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(True, message)


def note(message: str, remedy: str = "") -> Finding:
    """Return a finding that the user should know, with which the run can start."""
    return Finding(None, message, remedy)


def failed(message: str, remedy: str = "") -> Finding:
    """Return a finding with which the run cannot start, and how to fix it."""
    return Finding(False, message, remedy)


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run that is to be checked before it starts."""

    workers: Sequence[Worker]
    processes: Sequence[Process]
    installation_of: InstallationOf
    hosts: Hosts
    unreached: dict[str, str]  # hosts that cannot be reached, and the reasons
    config: LauncherConfig
    flags: dict[str, str]
    logdir: Path  # the run's folder on this machine
    round_columns: int = 0  # unrolls of a learner's round; 0: the algorithm plays in none

    @property
    def learners(self) -> list[Worker]:
        """The rows of learners."""
        return [worker for worker in self.workers if worker.job == "learner"]

    @property
    def bind_host(self) -> str:
        """The host of --bind_address, if it is given: learners listen there."""
        return self.flags.get("bind_address", "").rpartition(":")[0]

    @property
    def has_several_hosts(self) -> bool:
        """Whether learners and actors are on more than one machine."""
        rows = [worker for worker in self.workers if worker.job != "evaluator"]
        return len({self.installation_of(worker).host_id for worker in rows}) > 1

    @functools.cached_property
    def reached_hosts(self) -> list["CheckedHost"]:
        """The hosts that can be reached, each with the processes planned for it."""
        by_host: dict[str, list[Process]] = {}
        for process in (
            *process_plan.make_single_learners(self.learners, self.config, self.installation_of),
            *(process for process in self.processes if process.job != "learner"),
        ):
            by_host.setdefault(process.installation.host_id, []).append(process)
        return [
            CheckedHost(self, host_id, processes)
            for host_id, processes in by_host.items()
            if host_id not in self.unreached
        ]


@dataclasses.dataclass(frozen=True)
class CheckedHost:
    """A host, with the processes that it will run; each learner is one, as if it were alone."""

    run: PlannedRun
    host_id: str  # empty: this machine
    processes: Sequence[Process]

    @property
    def learners(self) -> list[Process]:
        """Its learners."""
        return [process for process in self.processes if process.job == "learner"]

    @property
    def folder(self) -> Path:
        """The folder in which its processes write: the run's, or the one of the run's state."""
        learners = self.run.processes[0]
        if not self.host_id:
            return self.run.logdir
        if learners.installation.host_id == self.host_id:
            return Path(learners.logdir)
        return Path(self.processes[0].installation.folder)

    def call(self, op: str, **arguments: Any) -> Any:
        """Call a method of `MachineProbe` on the host, and return its result."""
        return self.run.hosts.call(self.host_id, op, **arguments)

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What `MachineProbe.facts` says of the host, and `ahead`: seconds before our clock."""
        asked = time.time()
        found = self.call("facts", roots=[], pythons=[])
        return {**found, "ahead": found["time"] - (asked + time.time()) / 2}

    def run_program(self, command: Sequence[str], workdir: str = "") -> tuple[int, str]:
        """Run a program; return its exit code (127 if it is not there) and what it printed."""
        return self.run.hosts[self.host_id].run_program(list(command), workdir)

    def run_as_process(self, process: Process, *command: str) -> tuple[int, str]:
        """Run a command as the process would run: after its set-up commands, in its folder."""
        return self.run.hosts[self.host_id].run_program(
            process_plan.with_setup(process.worker, self.run.config, list(command)),
            workdir=process.workdir,
            environment=process.environment,
            seconds=_PROGRAM_SECONDS,
        )


class Check(NamedTuple):
    """A check: what it looks at, and the function, which gets a `PlannedRun` or `CheckedHost`."""

    scope: Scope
    function: Callable[[Any], Iterable[Finding]]


CHECKS: Registry[Check] = Registry("check of hosts")
Function = TypeVar("Function", bound=Callable[[Any], Iterable[Finding]])


def check(subject: str, scope: Scope) -> Callable[[Function], Function]:
    """Register a function as the check of this subject, which the table prints before results."""

    def register(function: Function) -> Function:
        CHECKS.register(subject, Check(scope, function))
        return function

    return register
