"""In touch with the hosts of a run: of one that is to be started, or that goes on already."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.node.run_registry import Record, Run
from launcher.node.task import LEARNERS
from launcher.plan import host_environment, workers_csv
from launcher.plan.host_environment import Ground, Grounds
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts, place, targets
from launcher.remote.remote_node import Failed, Lost
from launcher.remote.state_mirror import Mirror
from launcher.running.run_control import Everywhere
from launcher.ssh.ssh_config import Settings, Target

_FIRST_SECONDS = 10.0  # for the first news of all hosts
Say = Callable[[str], None]


def survey(rows: Sequence[Worker], hosts: Hosts, deploys: bool, say: Say) -> Grounds:
    """What each row finds on its machine; on one that does not answer, what is supposed."""
    here = str(hosts.here.run.folder)
    wanted = {_key(row): row for row in rows if place(row)}
    known: dict[str, dict[str, Any]] = {}

    def ask(key: str) -> None:
        row = wanted[key]
        known[key] = hosts.there[place(row)].call(
            "facts",
            roots=host_environment.roots(row, deploys),
            pythons=host_environment.pythons(row),
        )

    reached = [key for key, row in wanted.items() if place(row) in hosts.there]
    hosts.each(ask, reached, say)
    grounds: dict[str, Ground] = {}
    for key, row in wanted.items():
        there = hosts.there.get(place(row))
        address = there.address if there else row.ip
        grounds[key] = host_environment.elsewhere(row, place(row), address, known.get(key, {}))
    return lambda row: grounds[_key(row)] if place(row) else host_environment.here(row, here)


def _key(row: Worker) -> str:
    return f"{place(row)} {row.workdir!r} {row.python!r}"


def pythons(rows: Sequence[Worker], deploys: bool) -> Callable[[str], list[str]]:
    """By place: with which the supervisors there may run."""

    def of(where: str) -> list[str]:
        found = []
        for row in rows:
            if place(row) == where:
                for root in host_environment.roots(row, deploys):
                    found += [
                        each if each.startswith("~") or "/" not in each else str(Path(root, each))
                        for each in host_environment.pythons(row)
                    ]
        return list(dict.fromkeys(found))

    return of


def described(hosts: Hosts) -> dict[str, list[Any]]:
    """How each host is reached, for a record: without passwords."""
    return {
        where: list(target._replace(ssh_password="")) for where, target in hosts.targets.items()
    }


def targets_of(record: Record, csv: str = "") -> dict[str, Target]:
    """How its hosts are reached, with the passwords of its CSV, if that is there still."""
    known = {where: Target(*values) for where, values in record.targets.items()}
    if known:
        now = targets(rows_of(record, csv))
        known |= {where: target for where, target in now.items() if where in known}
    return known


def rows_of(record: Record, csv: str = "") -> list[Worker]:
    """Of all CSVs that it was started from and changed to, as far as they are there still."""
    rows: list[Worker] = []
    for path in dict.fromkeys([csv, *record.csvs] if csv else record.csvs):
        with contextlib.suppress(workers_csv.BadCsv):
            rows += workers_csv.read(path)[0]
    return rows


def again(
    run: Run, record: Record, csv: str, settings: Settings, log: str = ""
) -> tuple[Everywhere, Mirror]:
    """With those of a run that goes on; passwords are in its CSV, if that is there still.

    `log`: the process whose log is to be copied, too.
    """
    hosts = Hosts(run.name, targets_of(record, csv), settings)
    hosts.reach(_aside, lambda where: record.pythons.get(where, []))
    mirror = keep(run, record, hosts, log)
    everywhere = Everywhere(run, hosts)
    everywhere.end_leftovers(_aside)
    return everywhere, mirror


def _aside(line: str) -> None:
    """Where what is printed may be for a program to read."""
    print(line, file=sys.stderr)


def keep(run: Run, record: Record, hosts: Hosts, log: str = "") -> Mirror:
    """From now on what they say is copied here; waits a moment for their first words."""
    for where, there in hosts.there.items():
        if there.why and run.away(where):  # another frontend may be in touch
            run.see(where, there.why)
    mirror = Mirror(run, hosts, copies(record, log))
    hosts.keep(mirror)
    until = time.monotonic() + _FIRST_SECONDS
    while time.monotonic() < until:
        if all(there.why or not run.away(where) for where, there in hosts.there.items()):
            break
        time.sleep(0.05)
    return mirror


def leave(run: Run, hosts: Hosts) -> None:
    """What is known of them gets old from now on; what goes on there goes on."""
    hosts.close()
    for where in hosts.there:
        run.see(where, "no frontend asks it now")


def copies(record: Record, log: str = "") -> dict[str, dict[str, Path]]:
    """Files of a run's folder that are copied, by place and path there: what learners say."""
    found: dict[str, dict[str, Path]] = {}
    here = Path(record.logdir)
    for process in record.processes:
        name, place = process["name"], process.get("place", "")
        if not place or (record.shared and place == record.place(LEARNERS)):
            continue
        if name in (LEARNERS, log):
            found.setdefault(place, {})[process["log"]] = here / f"{name}.log"
        if name == LEARNERS:
            rows = "metrics.jsonl"
            found[place][str(Path(process["log"]).parent / rows)] = here / rows
    return found


def is_shared(hosts: Hosts, where: str, there: str, here: Path, mark: str) -> bool:
    """Whether a folder of another host is the one here: a shared file system."""
    if not where:
        return True
    probe = here / f".{mark}"
    try:
        probe.touch()
        return bool(hosts.there[where].call("exists", path=str(Path(there) / probe.name)))
    except (Lost, Failed, OSError):
        return False
    finally:
        probe.unlink(missing_ok=True)
