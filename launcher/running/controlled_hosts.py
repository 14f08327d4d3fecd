"""Prepares the hosts of a run for a controller on one of them, which reaches the others by TLS.

A frontend starts on each host what takes the controller's orders (`launcher.node.order_server`),
and leaves on the controller's host where these listen, with credentials of this start of the run
alone. They let nobody log in anywhere.
"""

import dataclasses
from pathlib import Path
from typing import Any

from impala_mm.config.flags import format_value, infos
from impala_mm.runtime import certificates
from launcher.node import order_channel
from launcher.node.callbacks import Say
from launcher.node.controlled_node import CONTROLLED, CONTROLLER_STATE, read_term
from launcher.node.run_registry import Record, Run
from launcher.node.task import LEARNERS, read_json, write_json
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import HostUnavailable

_START_SECONDS = 60.0  # timeout for a host to start a server
_CONTROLLER_SECONDS = 120.0  # timeout for a host to start the controller


def write_credentials(run: Run, place: str, credentials: str) -> None:
    """Keep the credentials of a run whose controller is to be on the host `place`."""
    known = {"place": place, "credentials": credentials, "servers": {}, "term": 1}
    write_json(run.folder / CONTROLLED, known)


def begin_term(run: Run) -> None:
    """Begin the next term: hosts that `prepare` reaches refuse the orders of controllers before."""
    path = run.folder / CONTROLLED
    write_json(path, read_json(path) | {"term": read_term(path) + 1})


def place_of(run: Run) -> str:
    """Return the host that may have the run's controller; empty if none of the CSV may."""
    return read_json(run.folder / CONTROLLED).get("place", "")


def prepare(
    run: Run, hosts: Hosts, record: Record, config: LauncherConfig, say: Say | None = None
) -> None:
    """Start what takes orders on every host that is connected, and tell the controller's host.

    It does nothing if no host of the CSV may have the run's controller. With `say`, a host that
    fails is reported and left out; without, OperationFailed is raised.
    """
    known = read_json(run.folder / CONTROLLED)
    if not known:
        return
    task = {
        "credentials": certificates.by_role(known["credentials"], order_channel.CONTROL_ROLES)[
            order_channel.SUPERVISOR
        ],
        "start": record.id,
        "lease_secs": config.orphan_secs,
    }

    def start_on(host_id: str) -> dict[str, Any]:
        address = hosts.remote_nodes[host_id].address
        entry = hosts.call(
            *(host_id, "start_order_server"),
            task=task | {"address": address},
            term=known["term"],
            timeout=_START_SECONDS,
        )
        return entry | {"address": address}

    listening = {}
    reached = [host_id for host_id in record.targets if _is_connected(hosts, host_id)]
    for host_id, result in hosts.for_each(start_on, reached).items():
        if isinstance(result, HostUnavailable):
            run.record_contact(host_id, str(result))
        elif isinstance(result, Exception) and say:
            say(f"{host_id} takes no orders of the controller: {result}")
        elif isinstance(result, Exception):
            raise result
        else:
            listening[host_id] = result
    known = read_json(run.folder / CONTROLLED)  # another frontend may have begun the next term
    known["servers"] |= listening
    write_json(run.folder / CONTROLLED, known)
    if _is_connected(hosts, known["place"]):
        _write_control(hosts, record, known)


def _is_connected(hosts: Hosts, host_id: str) -> bool:
    return host_id in hosts.remote_nodes and not hosts.remote_nodes[host_id].error


def _write_control(hosts: Hosts, record: Record, known: dict[str, Any]) -> None:
    """Tell the controller's host which processes the run has, and where orders are taken."""
    roles = order_channel.CONTROL_ROLES
    credentials = certificates.by_role(known["credentials"], roles)[order_channel.CONTROLLER]
    processes = [each for each in record.processes if each.get("place")]
    planned = record.first_learner_places
    if planned[:1] != [record.host_id_of(LEARNERS)]:  # its new host has no plan of those left out
        planned = record.learner_places
    own = dataclasses.replace(
        record,
        processes=processes,
        socket="",
        csvs=[],
        shared=False,
        first_learner_places=planned,
        # The address by which other hosts reach a host, not how a frontend logs in there.
        targets={
            host_id: [known["servers"].get(host_id, {}).get("address", target[0])]
            for host_id, target in record.targets.items()
        },
    )
    hosts.call(
        *(known["place"], "write_control"),
        record=dataclasses.asdict(own),
        control={
            "credentials": credentials,
            "servers": known["servers"],
            "term": known["term"],
        },
    )


def start_controller(
    run: Run,
    hosts: Hosts,
    row: Worker,
    installation: Installation,
    config: LauncherConfig,
) -> dict[str, Any]:
    """Start the run's controller on the host of a row; return what it reports.

    Raises HostUnavailable, OperationFailed.
    """
    program = Path(installation.experiment).with_name("run_experiment_mm_raw.py")
    command = [installation.python, str(program), "--control", f"--tmux_sess={run.name}"]
    values = {
        name: format_value(getattr(config, name))
        for name, known in infos(config).items()
        if "controller" in known.passed_to
    }
    command += process_plan.flag_arguments(values)
    entry = hosts.call(
        *(installation.host_id, "start_controller"),
        command=process_plan.with_setup(row, config, command),
        workdir=installation.workdir,
        timeout=_CONTROLLER_SECONDS,
    )
    entry |= {"place": installation.host_id}
    write_json(run.folder / CONTROLLER_STATE, entry)  # as the next report of the host will say
    return entry
