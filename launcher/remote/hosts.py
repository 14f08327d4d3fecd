"""The machines of a run: this one, and others over SSH, asked at the same time.

A machine's place is how the CSV reaches it, `user@address:port`, or empty for this one. Two rows of
one place share a connection.
"""

import functools
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import libtmux
from libtmux import exc

from launcher.node import tmux as windows
from launcher.node.machine_probe import Machine
from launcher.node.node_agent import Here
from launcher.node.run_registry import Run
from launcher.plan.workers_csv import Worker
from launcher.remote import parallel
from launcher.remote.progress_line import Live
from launcher.remote.remote_node import ANSWER_SECONDS, Ear, Failed, Lost, There
from launcher.ssh.ssh_config import Settings, Target

_SAY_SECONDS = 5.0  # between two lines of progress, where there is no terminal
Say = Callable[[str], None]
Result = TypeVar("Result")


class Hosts:
    """All of one run."""

    def __init__(self, name: str, targets: Mapping[str, Target], settings: Settings):
        """`targets`: of places other than this machine."""
        self._name = name
        self.here, self._machine = Here(Run(name), tmux), Machine(Run(name))
        self.targets = dict(targets)
        self._settings = settings
        self.there: dict[str, There] = {}

    def __getitem__(self, place: str) -> Machine | There:
        """Whom to ask for a program's answer."""
        return self.there[place] if place else self._machine

    def call(self, place: str, op: str, *, within: float = ANSWER_SECONDS, **said: Any) -> Any:
        """Of `Here`, or of `Machine`, there. Raises Lost, Failed, or what they raise here."""
        if place:
            return self.there[place].call(op, within=within, **said)
        of = self._machine if hasattr(self._machine, op) else self.here
        return getattr(of, op)(**said)

    def reach(
        self, say: Say, pythons: Callable[[str], list[str]], places: Iterable[str] | None = None
    ) -> dict[str, str]:
        """Connects to all (or these) places that it does not know yet: why not, of those that fail.

        `pythons`: that a place may have.
        """
        new = [p for p in places or self.targets if p not in self.there]

        def connect(place: str) -> None:
            there = There(place, self.targets[place], self._settings, pythons(place))
            self.there[place] = there
            there.connect(self._name)

        return {place: str(e) for place, e in self.each(connect, new, say).items() if e}

    def each(
        self, function: Callable[[str], Any], places: Sequence[str], say: Say | None = None
    ) -> dict[str, Any]:
        """What it returned for each place, or its exception; with progress, where it takes long."""
        found: dict[str, Any] = {}
        live = Live(say, _SAY_SECONDS) if say else None
        for i, result in parallel.each(function, places):
            if isinstance(result, Exception) and not isinstance(result, (Lost, Failed)):
                raise result
            found[places[i]] = result
            if live:
                live.tell(lambda: f"hosts: {len(found)} of {len(places)}")
        if live:
            live.end()
        return found

    def keep(self, ear: Ear) -> None:
        """In touch with all of them; those that are not there yet are tried again and again."""
        for there in self.there.values():
            there.keep(ear)

    def close(self) -> None:
        """What goes on there goes on."""
        for there in self.there.values():
            there.close()


def place(worker: Worker) -> str:
    """Of a row."""
    if is_here(worker.ip):
        return ""
    user = f"{worker.ssh_username}@" if worker.ssh_username else ""
    port = f":{worker.ssh_port}" if worker.ssh_port else ""
    return f"{user}{worker.ip}{port}"


def targets(workers: Sequence[Worker]) -> dict[str, Target]:
    """By place; the first row of a place says how it is reached."""
    places = parallel.in_order(place, workers)  # names take time to be looked up
    found: dict[str, Target] = {}
    for where, row in zip(places, workers, strict=True):
        if where:
            target = Target(
                row.ip, row.ssh_port, row.ssh_username, row.ssh_password, row.ssh_key_path
            )
            found.setdefault(where, target)
    return found


@functools.cache
def is_here(host: str) -> bool:
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


def tmux(socket_path: str) -> windows.Tmux:
    """The server of this socket."""
    server = libtmux.Server(socket_path=socket_path)

    def ask(*arguments: str) -> tuple[list[str], list[str]]:
        try:
            answer = server.cmd(*arguments)
        except exc.LibTmuxException as error:
            raise windows.Broken(str(error)) from None
        return answer.stdout, answer.stderr

    return ask
