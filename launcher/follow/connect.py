"""Connects the frontend to the hosts of a run, before it is started or while it is running."""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from launcher.hosts.hosts import Hosts, find_targets, host_id_of
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.hosts.ssh_config import Target
from launcher.plan import host_environment, workers_csv
from launcher.plan.host_environment import Installation
from launcher.plan.workers_csv import Worker
from launcher.supervise.callbacks import Say
from launcher.supervise.run_registry import Record, Run
from launcher.supervise.task import LEARNERS, ROW_FILES


class Installations(dict[str, Installation]):
    """The project folder, Python and mpirun of rows, on their hosts."""

    def __call__(self, row: Worker) -> Installation:
        """Return that of a row."""
        return self[_row_key(row)]


def find_installations(
    rows: Sequence[Worker], hosts: Hosts, deploys: bool, say: Say | None = None
) -> Installations:
    """Find the project folder, Python and mpirun of each row on its host.

    For a host that cannot be reached, the values of the CSV and the defaults are assumed.
    """
    wanted = {_row_key(row): row for row in rows}

    def ask_facts(key: str) -> Any:
        row = wanted[key]
        return hosts.remote_nodes[host_id_of(row)].call(
            "facts",
            roots=host_environment.candidate_roots(row, deploys),
            pythons=host_environment.candidate_pythons(row),
        )

    connected = [key for key, row in wanted.items() if host_id_of(row) in hosts.remote_nodes]
    facts = hosts.for_each(ask_facts, connected, say)
    installations = Installations()
    for key, row in wanted.items():
        if not host_id_of(row):
            folder = str(hosts.local_node.run.folder)
            installations[key] = host_environment.local_installation(row, folder)
            continue
        node = hosts.remote_nodes.get(host_id_of(row))
        known = facts.get(key)
        installations[key] = host_environment.remote_installation(
            row,
            host_id_of(row),
            node.address if node else row.ip,
            known if isinstance(known, dict) else {},  # the host could not be reached
        )
    return installations


def _row_key(row: Worker) -> str:
    return f"{row.ip} {host_id_of(row)} {row.workdir!r} {row.python!r}"


def candidate_pythons(rows: Sequence[Worker], deploys: bool) -> dict[str, list[str]]:
    """Return the Python programs by which each host's supervisors may run, by host id."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for root in host_environment.candidate_roots(row, deploys) if host_id_of(row) else []:
            for each in host_environment.candidate_pythons(row):
                path = each if each.startswith("~") or "/" not in each else str(Path(root, each))
                found.setdefault(host_id_of(row), {})[path] = None
    return {host_id: list(pythons) for host_id, pythons in found.items()}


def describe_targets(hosts: Hosts) -> dict[str, list[Any]]:
    """Return how to connect to each host, in the format of a record and without passwords."""
    return {
        host_id: list(target._replace(ssh_password="")) for host_id, target in hosts.targets.items()
    }


def targets_of(record: Record, csv: str = "") -> dict[str, Target]:
    """Return how to connect to a run's hosts; passwords come from its CSV, if that still exists."""
    known = {host_id: Target(*values) for host_id, values in record.targets.items()}
    if known:
        now = find_targets(rows_of(record, csv))
        known |= {host_id: target for host_id, target in now.items() if host_id in known}
    return known


def rows_of(record: Record, csv: str = "") -> list[Worker]:
    """Read the rows of all CSVs that the run was started from or changed to, if still there."""
    rows: list[Worker] = []
    for path in dict.fromkeys([csv, *record.csvs] if csv else record.csvs):
        with contextlib.suppress(workers_csv.BadCsv):  # it is gone, or its user is editing it
            rows += workers_csv.read(path)[0]
    return rows


def forget_contacts(run: Run, host_ids: Iterable[str]) -> None:
    """Record that no frontend is connected to these hosts."""
    for host_id in host_ids:
        run.record_contact(host_id, "no frontend is connected to it")


def mirrored_files(record: Record, log: str = "") -> dict[str, dict[str, Path]]:
    """Map host id and path on that host to the local copy, for each file that is followed.

    These are the learners' log and rows, and the log of the process `log`.
    """
    found: dict[str, dict[str, Path]] = {}
    folder = Path(record.logdir)
    for process in record.processes:
        name, host_id = process.name, process.place
        if not host_id or (record.shared and host_id == record.host_id_of(LEARNERS)):
            continue
        if name in (LEARNERS, log):
            found.setdefault(host_id, {})[process.log] = folder / f"{name}.log"
        if name == LEARNERS:
            for rows in ROW_FILES:
                found[host_id][str(Path(process.log).parent / rows)] = folder / rows
    return found


def is_shared_folder(hosts: Hosts, host_id: str, remote_folder: str, local_folder: Path) -> bool:
    """Return whether a remote and a local path name the same folder of a shared file system.

    A hidden file is created for a moment to find out.
    """
    if not host_id:
        return True
    probe = local_folder / ".is-shared"
    try:
        probe.touch()
        return bool(
            hosts.remote_nodes[host_id].call("exists", path=str(Path(remote_folder) / probe.name))
        )
    except (HostUnavailable, OperationFailed, OSError):
        return False
    finally:
        probe.unlink(missing_ok=True)
