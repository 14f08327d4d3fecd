"""Another host of a run: sends it the calls of `LocalNode`, which `agent_main` answers over SSH.

A thread keeps the connection open: when it is lost, the thread reconnects, with growing pauses and
without limit. Messages from the host (states of processes, new content of files) are passed to a
`HostListener`.
"""

import contextlib
import itertools
import json
import shlex
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from launcher.hosts import agent_bundle
from launcher.hosts.ssh_config import HostUnavailable, Route, Target, find_route
from launcher.plan import project
from launcher.plan.settings import SshSettings
from launcher.supervise.agent_main import READY_LINE
from launcher.supervise.callbacks import OnLine
from launcher.supervise.errors import LauncherError

if TYPE_CHECKING:
    from paramiko import Channel

ANSWER_SECONDS = 30.0
_SILENT_SECONDS = 12.0  # seconds without any message after which a connection counts as lost
_MAX_LINE = 1 << 26  # bytes of a message: states of all processes, or what a program printed
_READ_BYTES = 1 << 16
_PING_SECONDS = 2.0
_PAUSE_SECONDS = 15.0  # maximum pause between two attempts to reconnect


class OperationFailed(LauncherError):
    """A host could not do what it was asked to; the message is the host's."""


class HostListener(Protocol):
    """A receiver of the messages from a host."""

    def on_states(self, host_id: str, states: dict[str, Any], all_states: bool) -> None:
        """Receive the states of the host's processes: of all, or of those that changed."""

    def on_file_data(self, host_id: str, path: str, offset: int, data: str) -> None:
        """Receive more content of a file that is followed, in base64."""

    def on_disconnected(self, host_id: str, error: str) -> None:
        """Handle the loss of the connection, or a failed attempt to reconnect."""

    def on_connected(self, host_id: str) -> None:
        """Handle a new connection, on which nothing is followed yet."""


class RemoteNode:
    """Another host of a run, with its connection."""

    def __init__(self, host_id: str, target: Target, settings: SshSettings, pythons: list[str]):
        """Prepare a host; `pythons`: Python programs that it may have, the best first."""
        self.host_id = host_id
        self._target, self._settings, self._pythons = target, settings, pythons
        # By which other hosts reach it, too: known once `connect` has found the route.
        self.address = target.ip
        self._agent: _AgentConnection | None = None
        self._failure, self.login = "not connected yet", ""
        self._listener: HostListener | None = None
        self._closed = threading.Event()
        self._name = ""

    @property
    def error(self) -> str:
        """Why the host is not connected; empty: it is."""
        agent = self._agent
        return agent.error if agent else self._failure

    def connect(self, name: str) -> None:
        """Connect to the host for the run of this name. Raises HostUnavailable."""
        self._name = name
        try:
            route = find_route(self._target, self._settings)
            self.address = route.address
            self._agent = _AgentConnection(
                route, self._target.ssh_password, self._pythons, name, self._on_message
            )
        except HostUnavailable as error:
            self._failure = str(error)
            raise
        except OSError as error:  # of this machine, such as too many open files
            self._failure = f"{self.host_id} cannot be reached: {error}"
            raise HostUnavailable(self._failure) from None
        self.login = self._agent.connection.login

    def stay_connected(self, listener: HostListener) -> None:
        """Keep the connection open from now on, and pass the host's messages to `listener`."""
        self._listener = listener
        threading.Thread(
            target=self._reconnect_forever,
            args=(listener,),
            name=f"keep {self.host_id}",
            daemon=True,
        ).start()

    def close(self) -> None:
        """Close the connection. Remote processes keep running."""
        self._closed.set()
        if self._agent:
            self._agent.close("the connection was closed")

    def call(self, op: str, *, timeout: float = ANSWER_SECONDS, **arguments: Any) -> Any:
        """Call a method on the host and return its result, within `timeout` seconds.

        Raises HostUnavailable, OperationFailed.
        """
        try:
            return self._open_agent().call(op, timeout, arguments)
        except (HostUnavailable, OperationFailed) as error:
            raise type(error)(f"{self.host_id}: {error}") from None

    def run_program(
        self,
        command: list[str],
        workdir: str = "",
        environment: dict[str, str] | None = None,
        seconds: float = 60.0,
        on_line: OnLine | None = None,
    ) -> tuple[int, str]:
        """Run a program as `MachineProbe.run_program` does; exit code 255 if the host is lost."""
        arguments = {"command": command, "workdir": workdir, "environment": environment or {}}
        try:
            code, output = self._open_agent().call(
                "run_program", seconds + 10, arguments | {"seconds": seconds}, on_line
            )
        except (HostUnavailable, OperationFailed) as error:
            return 255, f"{error}\n"
        return code, output

    def open_program(self, command: str) -> "Channel":
        """Start a program; return the channel to its input and output. Raises HostUnavailable."""
        try:
            return self._open_agent().connection.open_program(f"exec sh -c {shlex.quote(command)}")
        except HostUnavailable as error:
            raise HostUnavailable(f"{self.host_id}: {error}") from None

    def _open_agent(self) -> "_AgentConnection":
        agent = self._agent
        if agent is None:
            raise HostUnavailable(self._failure)
        agent.check()
        return agent

    def _reconnect_forever(self, listener: HostListener) -> None:
        pause = 1.0
        if self._agent:
            listener.on_connected(self.host_id)
        while True:
            if agent := self._agent:
                agent.lost.wait()
                self._failure, self._agent = agent.error, None
                pause = 1.0
            if self._closed.is_set():  # `close` was called: the host itself was not lost
                return
            listener.on_disconnected(self.host_id, self.error)
            if self._closed.wait(pause):
                return
            pause = min(1.5 * pause, _PAUSE_SECONDS)
            try:
                self.connect(self._name)
                listener.on_connected(self.host_id)
            except HostUnavailable:
                continue
            except Exception as error:  # such as too many threads of this machine, which may pass
                self._failure = f"{type(error).__name__}: {error}"
                if self._agent:
                    self._agent.close(self._failure)

    def _on_message(self, message: dict[str, Any]) -> None:
        if not self._listener:
            return
        if "states" in message:
            self._listener.on_states(self.host_id, message["states"], message.get("all", False))
        elif "file" in message:
            self._listener.on_file_data(
                self.host_id, message["file"], message["offset"], message["data"]
            )


class _Call(NamedTuple):
    """A call that waits for its answer."""

    answer: Future[Any]
    on_line: OnLine | None


class _AgentConnection:
    """One connection to a host, and the calls to the agent there; once it is lost, it stays lost.

    One thread reads, one pings: the agent exits if it receives nothing, and no call may need the
    host for a minute. The thread that reads may be stopped by what it does with a message, such as
    print it to a terminal that is stopped.
    """

    def __init__(
        self,
        route: Route,
        password: str,
        pythons: list[str],
        name: str,
        on_message: Callable[[dict[str, Any]], None],
    ):
        """Connect, and start the agent for the run of this name. Raises HostUnavailable."""
        try:
            from launcher.hosts.connection import connect  # noqa: PLC0415 - paramiko takes a while
        except ModuleNotFoundError:
            raise HostUnavailable(
                f"paramiko, which connects, is missing: {project.INSTALL_LAUNCHER}"
            ) from None
        self.lost, self.error = threading.Event(), ""
        self._on_message = on_message
        self._numbers, self._calls = itertools.count(), dict[int, _Call]()
        self._writing = threading.Lock()
        self.connection = connect(route, password)
        try:
            self._channel = self.connection.open_program(agent_bundle.start_command(pythons))
            self._channel.sendall(agent_bundle.bundle_header(name) + agent_bundle.bundle())
            self._lines = _read_lines(self._channel)
            self._wait_until_ready()
            self._channel.settimeout(_SILENT_SECONDS)
            threading.Thread(target=self._read, name=f"read {name}", daemon=True).start()
            threading.Thread(target=self._keep_alive, name=f"ping {name}", daemon=True).start()
        except Exception as error:  # paramiko's, a socket's, or too many threads here
            self.connection.close()
            raise HostUnavailable(
                f"{route.host}: could not start Python on the host: {_reason(error)}"
            ) from None

    def _wait_until_ready(self) -> None:
        """Skip what the login shell prints, until the agent reports that it is ready."""
        printed = "no output"
        for line in self._lines:
            printed = line.decode(errors="replace").strip()
            if printed == READY_LINE:
                return
        errors = self._channel.makefile_stderr("rb").read(4000).decode(errors="replace")
        raise HostUnavailable([printed, *errors.splitlines()][-1].strip())

    def call(
        self,
        op: str,
        seconds: float,
        arguments: dict[str, Any],
        on_line: OnLine | None = None,
    ) -> Any:
        """Send a call and wait for its answer. Raises HostUnavailable, OperationFailed."""
        number, answer = next(self._numbers), Future[Any]()
        self._calls[number] = _Call(answer, on_line)
        try:
            self._write({"id": number, "op": op, "stream": on_line is not None} | arguments)
            return answer.result(seconds)
        except TimeoutError:
            raise HostUnavailable(f"no answer in {seconds:g} s") from None
        finally:
            del self._calls[number]

    def check(self) -> None:
        """Raise HostUnavailable if the connection is lost."""
        if self.lost.is_set():
            raise HostUnavailable(self.error)

    def close(self, why: str) -> None:
        """Close the connection at once, whatever the host does; the first reason given counts."""
        if not self.lost.is_set():
            self.error = why
            self.lost.set()
        self.connection.close()

    def _keep_alive(self) -> None:
        with contextlib.suppress(HostUnavailable):  # the connection is lost
            while not self.lost.wait(_PING_SECONDS):
                self._write({"op": "ping"})

    def _write(self, message: dict[str, Any]) -> None:
        self.check()
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._writing:
                self._channel.sendall(line)
        except Exception as error:  # paramiko raises many things
            self.close(_reason(error))
            raise HostUnavailable(self.error) from None

    def _read(self) -> None:
        """Read messages until the connection is lost; an agent that lives keeps sending some."""
        try:
            for line in self._lines:
                self._dispatch(json.loads(line))
            why = "the host closed the connection"
        except TimeoutError:
            why = f"no answer for {_SILENT_SECONDS:g} s"
        except Exception as error:  # whatever ends this thread, nobody else reads answers
            why = _reason(error)
        self.close(why)
        # Who calls later sees that the connection is lost.
        for call in list(self._calls.values()):
            if not call.answer.done():
                call.answer.set_exception(HostUnavailable(self.error))

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "id" not in message:
            self._on_message(message)
        elif call := self._calls.get(message["id"]):  # if it still waits
            if "said" in message:
                if call.on_line:
                    call.on_line(message["said"])
            elif "error" in message:
                call.answer.set_exception(OperationFailed(message["error"]))
            else:
                call.answer.set_result(message["result"])


def _read_lines(channel: "Channel") -> Iterator[bytes]:
    """Yield lines. Raises ValueError for one that would fill this machine's memory."""
    rest = b""
    while data := channel.recv(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE:
            raise ValueError(f"the host sent a line of more than {_MAX_LINE:,} bytes")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
