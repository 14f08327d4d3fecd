"""The machines of a run: this one, and others over SSH, asked at the same time.

A machine's host id is how the CSV reaches it, `user@address:port`; empty: this machine. Rows of
one host id share a connection.
"""

import functools
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import libtmux
from libtmux import exc

from launcher.node import tmux
from launcher.node.callbacks import Say
from launcher.node.local_node import LocalNode
from launcher.node.machine_probe import MachineProbe
from launcher.node.run_registry import Run
from launcher.plan.workers_csv import Worker
from launcher.remote import parallel
from launcher.remote.progress_line import ProgressLine
from launcher.remote.remote_node import (
    ANSWER_SECONDS,
    HostListener,
    HostUnavailable,
    OperationFailed,
    RemoteNode,
)
from launcher.ssh.ssh_config import Settings, Target

_PROGRESS_SECONDS = 5.0  # between two lines of progress, where there is no terminal
Result = TypeVar("Result")


class Hosts:
    """All machines of one run."""

    def __init__(self, name: str, targets: Mapping[str, Target], settings: Settings):
        """`targets`: of hosts other than this machine."""
        self._name = name
        self.local_node, self._local_probe = (
            LocalNode(Run(name), libtmux_server),
            MachineProbe(Run(name)),
        )
        self.targets = dict(targets)
        self._settings = settings
        self.remote_nodes: dict[str, RemoteNode] = {}

    def __getitem__(self, host_id: str) -> MachineProbe | RemoteNode:
        """Whom to ask for a program's answer."""
        return self.remote_nodes[host_id] if host_id else self._local_probe

    def call(
        self, host_id: str, op: str, *, timeout: float = ANSWER_SECONDS, **arguments: Any
    ) -> Any:
        """Calls a method of `LocalNode` or `MachineProbe` on a host.

        Raises HostUnavailable, OperationFailed, or what these raise on this machine.
        """
        if host_id:
            return self.remote_nodes[host_id].call(op, timeout=timeout, **arguments)
        target = self._local_probe if hasattr(self._local_probe, op) else self.local_node
        return getattr(target, op)(**arguments)

    def connect(
        self, say: Say, pythons: Callable[[str], list[str]], host_ids: Iterable[str] | None = None
    ) -> dict[str, str]:
        """Connects to all (or these) hosts that it does not know yet: why not, of those that fail.

        `pythons`: that a host may have.
        """
        new = [p for p in host_ids or self.targets if p not in self.remote_nodes]

        def connect_one(host_id: str) -> None:
            node = RemoteNode(host_id, self.targets[host_id], self._settings, pythons(host_id))
            self.remote_nodes[host_id] = node
            node.connect(self._name)

        return {host_id: str(e) for host_id, e in self.for_each(connect_one, new, say).items() if e}

    def for_each(
        self, function: Callable[[str], Any], host_ids: Sequence[str], say: Say | None = None
    ) -> dict[str, Any]:
        """What it returned for each host, or its exception; with progress, where it takes long."""
        found: dict[str, Any] = {}
        progress = ProgressLine(say, _PROGRESS_SECONDS) if say else None
        for i, result in parallel.map_unordered(function, host_ids):
            if isinstance(result, Exception) and not isinstance(
                result, (HostUnavailable, OperationFailed)
            ):
                raise result
            found[host_ids[i]] = result
            if progress:
                progress.update(lambda: f"hosts: {len(found)} of {len(host_ids)}")
        if progress:
            progress.clear()
        return found

    def stay_connected(self, listener: HostListener) -> None:
        """In touch with all of them; those that are not there yet are tried again and again."""
        for node in self.remote_nodes.values():
            node.stay_connected(listener)

    def close(self) -> None:
        """What goes on there goes on."""
        for node in self.remote_nodes.values():
            node.close()


def host_id_of(worker: Worker) -> str:
    """Of a row."""
    if is_this_machine(worker.ip):
        return ""
    user = f"{worker.ssh_username}@" if worker.ssh_username else ""
    port = f":{worker.ssh_port}" if worker.ssh_port else ""
    return f"{user}{worker.ip}{port}"


def find_targets(workers: Sequence[Worker]) -> dict[str, Target]:
    """By host id; the first row of a host says how it is reached."""
    host_ids = parallel.map_ordered(host_id_of, workers)  # names take time to be looked up
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
    """Whether a row's host is this machine: one of its addresses can be listened on."""
    if host in {"localhost", socket.gethostname()}:
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:  # nobody knows it; whoever connects to it will say so
        return False
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def libtmux_server(socket_path: str) -> tmux.RunTmux:
    """The server of this socket."""
    server = libtmux.Server(socket_path=socket_path)

    def run_tmux(*arguments: str) -> tuple[list[str], list[str]]:
        try:
            answer = server.cmd(*arguments)
        except exc.LibTmuxException as error:
            raise tmux.TmuxError(str(error)) from None
        return answer.stdout, answer.stderr

    return run_tmux
