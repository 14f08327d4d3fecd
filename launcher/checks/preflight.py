"""Runs all checks before a run starts, and prints each result with how to fix a failure.

All machines are checked at the same time through the same calls (`Hosts`). A result that several
of them share is printed once.
"""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from impala_mm.config.messages import escape
from launcher.checks import machine, network, run  # noqa: F401 (they register their checks)
from launcher.checks.check import CHECKS, CheckedHost, Finding, PlannedRun, Scope
from launcher.follow.console import make_console
from launcher.hosts import parallel


def check_run(planned: PlannedRun) -> list[Finding]:
    """Run all checks of a planned run; those between hosts only if all others passed."""
    hosts = planned.reached_hosts
    parallel.map_ordered(lambda host: host.facts, hosts)  # asked once, for several checks
    targets: dict[Scope, Sequence[PlannedRun | CheckedHost]] = {
        Scope.RUN: [planned],
        Scope.LEARNER_HOSTS: [host for host in hosts if host.learners],
        Scope.HOSTS: hosts,
        Scope.REMOTE_HOSTS: [host for host in hosts if host.host_id],
        Scope.BETWEEN_HOSTS: [planned] if planned.has_several_hosts else [],
    }

    def tasks(scope: Scope) -> list[tuple[str, PlannedRun | CheckedHost]]:
        subjects = [name for name in CHECKS.names if CHECKS[name].scope is scope]
        return [(subject, target) for subject in subjects for target in targets[scope]]

    at_once = [task for scope in Scope if scope is not Scope.BETWEEN_HOSTS for task in tasks(scope)]
    findings = [finding for some in parallel.map_ordered(_check, at_once) for finding in some]
    findings = _mark_different_versions(findings)
    if not has_failed(findings):  # one after the other: each may need the network for itself
        findings += [each for task in tasks(Scope.BETWEEN_HOSTS) for each in _check(task)]
    return findings


def _check(task: tuple[str, PlannedRun | CheckedHost]) -> list[Finding]:
    """Run a check of this subject; return its different findings."""
    subject, target = task
    host_id = target.host_id if isinstance(target, CheckedHost) else ""
    findings = [
        finding._replace(subject=finding.subject or subject, host_id=finding.host_id or host_id)
        for finding in CHECKS[subject].function(target)
    ]
    return list(dict.fromkeys(findings))


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
    subjects = list(dict.fromkeys(finding.subject for finding in findings))
    for finding in sorted(findings, key=lambda finding: subjects.index(finding.subject)):
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


def _mark_different_versions(findings: list[Finding]) -> list[Finding]:
    """Turn the results about versions into notes, if the hosts' versions differ."""
    versions = {
        finding.message for finding in findings if finding.subject == "versions" and finding.ok
    }
    if len(versions) < 2:
        return findings
    remedy = "--deploy installs the same versions on all hosts"
    return [
        finding._replace(ok=None, remedy=remedy)
        if finding.subject == "versions" and finding.ok
        else finding
        for finding in findings
    ]
