"""The machines of a run: this one, and others over SSH, which are called in parallel.

A machine's host id is its address in the CSV, `user@address:port`; empty: this machine. Rows with
the same host id share a connection.
"""

import concurrent.futures
import functools
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import libtmux
from libtmux import exc

from launcher.hosts import parallel
from launcher.hosts.progress_line import ProgressLine
from launcher.hosts.remote_node import (
    ANSWER_SECONDS,
    HostListener,
    HostUnavailable,
    OperationFailed,
    RemoteNode,
)
from launcher.hosts.ssh_config import Target
from launcher.plan.settings import SshSettings
from launcher.plan.workers_csv import Worker
from launcher.supervise import tmux
from launcher.supervise.callbacks import Say
from launcher.supervise.local_node import LocalNode
from launcher.supervise.machine_probe import MachineProbe
from launcher.supervise.run_registry import Run


class Hosts:
    """All machines of one run."""

    def __init__(self, name: str, targets: Mapping[str, Target], settings: SshSettings):
        """Prepare the run `name`; `targets`: how to connect to hosts other than this machine."""
        self._name = name
        self.local_node = LocalNode(Run(name), run_libtmux)
        self._local_probe = MachineProbe(Run(name))
        self.targets = dict(targets)
        self._settings = settings
        self.remote_nodes: dict[str, RemoteNode] = {}

    def __getitem__(self, host_id: str) -> MachineProbe | RemoteNode:
        """Return the object that runs programs on a host."""
        return self.remote_nodes[host_id] if host_id else self._local_probe

    def call(
        self, host_id: str, op: str, *, timeout: float = ANSWER_SECONDS, **arguments: Any
    ) -> Any:
        """Call a method of `LocalNode` or `MachineProbe` on a host, and return its result.

        Raises HostUnavailable, OperationFailed; on this machine, what the method itself raises.
        """
        if host_id:
            return self.remote_nodes[host_id].call(op, timeout=timeout, **arguments)
        target = self._local_probe if hasattr(self._local_probe, op) else self.local_node
        return getattr(target, op)(**arguments)

    def connect(
        self,
        say: Say,
        pythons: Mapping[str, list[str]],
        host_ids: Iterable[str] | None = None,
    ) -> dict[str, str]:
        """Connect to all hosts, or to these, that are not connected yet; return failures and why.

        `pythons`: the Python programs that a host may have, by host id.
        """
        new = [p for p in host_ids or self.targets if p not in self.remote_nodes]

        def connect_one(host_id: str) -> None:
            target = self.targets[host_id]
            node = RemoteNode(host_id, target, self._settings, pythons.get(host_id, []))
            self.remote_nodes[host_id] = node
            node.connect(self._name)

        return {host_id: str(e) for host_id, e in self.for_each(connect_one, new, say).items() if e}

    def for_each(
        self,
        function: Callable[[str], Any],
        host_ids: Sequence[str],
        say: Say | None = None,
        failures: tuple[type[Exception], ...] = (HostUnavailable, OperationFailed),
    ) -> dict[str, Any]:
        """Call a function for each host in parallel; return its results and failures by host id.

        With `say`, a progress line is printed if it takes long.
        """
        found: dict[str, Any] = {}
        calls = dict(zip(parallel.start_calls(function, host_ids), host_ids, strict=True))
        progress = ProgressLine(say) if say else None
        for call in concurrent.futures.as_completed(calls):
            try:
                found[calls[call]] = call.result()
            except failures as error:
                found[calls[call]] = error
            if progress:
                progress.update(
                    lambda s: f"waiting for hosts: {len(found)} of {len(host_ids)} done ({s:.0f} s)"
                )
        if progress:
            progress.clear()
        return found

    def stay_connected(self, listener: HostListener) -> None:
        """Keep the connections to all hosts open, and retry those that fail, from now on."""
        for node in self.remote_nodes.values():
            node.stay_connected(listener)

    def close(self) -> None:
        """Close the connections. Remote processes keep running."""
        for node in self.remote_nodes.values():
            node.close()


def host_id_of(worker: Worker) -> str:
    """Return the host id of a row."""
    if is_this_machine(worker.ip):
        return ""
    user = f"{worker.ssh_username}@" if worker.ssh_username else ""
    port = f":{worker.ssh_port}" if worker.ssh_port else ""
    return f"{user}{worker.ip}{port}"


def find_targets(workers: Sequence[Worker]) -> dict[str, Target]:
    """Return how to connect to each host, by host id; the first row of a host counts."""
    host_ids = parallel.map_ordered(host_id_of, workers)  # resolving host names takes time
    found: dict[str, Target] = {}
    for host_id, row in zip(host_ids, workers, strict=True):
        if host_id:
            target = Target(
                row.ip, row.ssh_port, row.ssh_username, row.ssh_password, row.ssh_key_path
            )
            found.setdefault(host_id, target)
    return found


@functools.cache
def is_this_machine(host: str) -> bool:
    """Return whether a row's host is this machine: whether it can listen on the host's address."""
    if host in {"localhost", socket.gethostname()}:
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:  # the name cannot be resolved, which connecting to it will report
        return False
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def run_libtmux(socket: str, *arguments: str) -> tuple[list[str], list[str]]:
    """Call the tmux server of this socket; return its output and its errors."""
    try:
        answer = libtmux.Server(socket_path=socket).cmd(*arguments)
    except exc.LibTmuxException as error:
        raise tmux.TmuxError(str(error)) from None
    return answer.stdout, answer.stderr
