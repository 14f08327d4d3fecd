"""Starts the supervisors of mpirun's daemons on the other learners' hosts, and introduces them.

The first learner's host gets to know where they listen, and mpirun's part of the run's credentials
(`order_channel`); each other host gets the supervisors' part. The credentials lie in
the run's state folder on the frontend's machine. They let nobody log in anywhere.
"""

from collections.abc import Sequence
from typing import Any

from impala_mm.runtime import certificates
from launcher.follow.connected_run import ConnectedRun
from launcher.hosts.remote_node import HostUnavailable
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.settings import LauncherConfig
from launcher.supervise import order_channel
from launcher.supervise.run_registry import Run

_CREDENTIALS_FILE = "orders"  # in the run's state folder; mode 0600
_START_SECONDS = 60.0  # timeout for a host to start a supervisor


def write_credentials(run: Run, credentials: str) -> None:
    """Keep the credentials for the time of the run."""
    path = run.folder / _CREDENTIALS_FILE
    path.touch(mode=0o600)
    path.write_text(credentials)


def make_task(
    installation: Installation, credentials: str, config: LauncherConfig, start: str
) -> dict[str, Any]:
    """Return the task of the supervisor on a host, without the run's state folder there."""
    return {
        "address": installation.address,
        "credentials": certificates.by_role(credentials, order_channel.ROLES)[
            order_channel.SUPERVISOR
        ],
        "prefix": process_plan.mpi_prefix(installation),
        "announced": process_plan.split_arguments(config.mpirun_args),
        "start": start,
        "lease_secs": config.orphan_secs,
    }


def start_supervisors(
    connected: ConnectedRun,
    first: Installation,
    others: Sequence[Installation],
    start: str,
    *,
    replace: bool,
) -> None:
    """Start the supervisors on the hosts of the `others`, and tell the `first` where they listen.

    Those on hosts that are unreachable are started by `recovery`. `start`: the id of the run's
    start; `replace`: end supervisors that are running, which serve learners of before. Raises
    HostUnavailable if the first host is lost, OperationFailed.
    """
    run, hosts, config = connected.run, connected.hosts, connected.config
    credentials = (run.folder / _CREDENTIALS_FILE).read_text()
    tasks = {each.host_id: make_task(each, credentials, config, start) for each in others}

    def start_on(host_id: str) -> dict[str, Any]:
        return hosts.call(
            host_id,
            "start_daemon_supervisor",
            task=tasks[host_id],
            replace=replace,
            timeout=_START_SECONDS,
        )

    found = hosts.for_each(start_on, list(tasks))
    for host_id, result in found.items():
        if isinstance(result, HostUnavailable):
            run.record_contact(host_id, str(result))
            found[host_id] = {}
        elif isinstance(result, Exception):
            raise result
    hosts.call(
        first.host_id,
        "write_mpirun_agent",
        credentials=certificates.by_role(credentials, order_channel.ROLES)[order_channel.MPIRUN],
        supervisors={each.address: found[each.host_id] for each in others},
    )
