"""Another host of a run: sends it the calls of `LocalNode`, which `agent_main` answers over SSH.

A thread keeps the connection open: when it is lost, the thread reconnects, with growing pauses and
without limit. Messages from the host (states of processes, new content of files) are passed to a
`HostListener`.
"""

import contextlib
import itertools
import json
import queue
import shlex
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from launcher.hosts.ssh_channel import (
    SILENT_SECONDS,
    START_SECONDS,
    HostUnavailable,
    SshChannel,
)
from launcher.hosts.ssh_config import Settings, Target, Unreachable, find_route
from launcher.hosts.stdin_feed import Readable, run_with_input
from launcher.supervise.callbacks import OnLine

if TYPE_CHECKING:
    from paramiko import Channel

ANSWER_SECONDS = 30.0
_PING_SECONDS = 2.0
_PAUSE_SECONDS = 15.0  # maximum pause between two attempts to reconnect


class OperationFailed(Exception):
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

    def __init__(self, host_id: str, target: Target, settings: Settings, pythons: list[str]):
        """Find the route to a host; `pythons`: Python programs that it may have, the best first."""
        self.host_id = host_id
        self._target, self._settings, self._pythons = target, settings, pythons
        # The host's address, by which other hosts reach it, too. If its route cannot be found,
        # `connect` says why.
        self.address = target.ip
        with contextlib.suppress(Unreachable):
            self.address = find_route(target, settings).address
        self._agent: _AgentConnection | None = None
        self.error, self.login = "not connected yet", ""
        self._listener: HostListener | None = None
        self._closed = threading.Event()
        self._name = ""

    def connect(self, name: str) -> None:
        """Open a channel to the host for the run of this name. Raises HostUnavailable."""
        self._name = name
        try:
            channel = SshChannel(self._target, self._settings, self._pythons, name)
        except HostUnavailable as error:
            self.error = str(error)
            raise
        self.login = channel.login
        self._agent = _AgentConnection(channel, name, self._on_message)
        self.error = ""

    def stay_connected(self, listener: HostListener) -> None:
        """Keep the connection open from now on, and pass the host's messages to `listener`."""
        self._listener = listener
        threading.Thread(
            target=self._reconnect_forever, name=f"keep {self.host_id}", daemon=True
        ).start()

    def close(self) -> None:
        """Close the connection. Remote processes keep running."""
        self._closed.set()
        if self._agent:
            self._agent.close()

    def call(self, op: str, *, timeout: float = ANSWER_SECONDS, **arguments: Any) -> Any:
        """Call a method on the host and return its result, within `timeout` seconds.

        Raises HostUnavailable, OperationFailed.
        """
        agent = self._open_agent()
        try:
            return agent.call(op, timeout, arguments)
        except HostUnavailable as error:
            raise HostUnavailable(f"{self.host_id}: {error}") from None
        except OperationFailed as error:
            raise OperationFailed(f"{self.host_id}: {error}") from None

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
        agent = self._agent
        if agent is None:
            return 255, f"{self.error}\n"
        try:
            code, output = agent.call(
                "run_program", seconds + 10, arguments | {"seconds": seconds}, on_line
            )
        except (HostUnavailable, OperationFailed) as error:
            return 255, f"{error}\n"
        return code, output

    def run_with_input(self, command: str, data: Readable, seconds: float) -> tuple[int, str]:
        """Run a command that reads `data`; return exit code and output. Raises HostUnavailable."""
        return self._open_agent().run_with_input(command, data, seconds)

    def open_program(self, command: str) -> "Channel":
        """Start a program; return the channel to its input and output. Raises HostUnavailable."""
        agent = self._open_agent()
        try:
            return agent.open_program(command)
        except HostUnavailable as error:
            raise HostUnavailable(f"{self.host_id}: {error}") from None

    def _open_agent(self) -> "_AgentConnection":
        """Return the connection. Raises HostUnavailable if it is closed."""
        agent = self._agent
        if agent is None or agent.lost.is_set():
            why = agent.error if agent else self.error
            raise HostUnavailable(f"{self.host_id}: {why}")
        return agent

    def _reconnect_forever(self) -> None:
        assert self._listener
        pause = 1.0
        if self._agent:
            self._listener.on_connected(self.host_id)
        while not self._closed.is_set():
            if agent := self._agent:
                agent.lost.wait()
                self.error = agent.error
                self._agent = None
                pause = 1.0
            if self._closed.is_set():  # `close` was called: the host itself was not lost
                return
            self._listener.on_disconnected(self.host_id, self.error)
            if self._closed.wait(pause):
                return
            pause = min(1.5 * pause, _PAUSE_SECONDS)
            try:
                self.connect(self._name)
                self._listener.on_connected(self.host_id)
            except HostUnavailable:
                pass
            except Exception as error:  # such as too many open files, which may pass
                self.error = f"{type(error).__name__}: {error}"
                if self._agent:
                    self._agent.close()

    def _on_message(self, message: dict[str, Any]) -> None:
        if not self._listener:
            return
        if "states" in message:
            self._listener.on_states(self.host_id, message["states"], message.get("all", False))
        elif "file" in message:
            self._listener.on_file_data(
                self.host_id, message["file"], message["offset"], message["data"]
            )


class _AgentConnection:
    """The calls over one channel."""

    def __init__(
        self, channel: SshChannel, name: str, on_message: Callable[[dict[str, Any]], None]
    ):
        self._channel, self._on_message = channel, on_message
        self.lost, self.error = threading.Event(), ""
        self._numbers = itertools.count()
        self._answers: dict[int, queue.Queue] = {}
        self._line_callbacks: dict[int, OnLine] = {}
        self._writing = threading.Lock()
        threading.Thread(target=self._read, name=f"read {name}", daemon=True).start()
        threading.Thread(target=self._keep_alive, name=f"ping {name}", daemon=True).start()

    def call(
        self,
        op: str,
        seconds: float,
        arguments: dict[str, Any],
        on_line: OnLine | None = None,
    ) -> Any:
        """Send a call and wait for its answer. Raises HostUnavailable, OperationFailed."""
        number = next(self._numbers)
        self._answers[number] = queue.Queue(1)
        if on_line:
            self._line_callbacks[number] = on_line
            arguments = arguments | {"stream": True}
        try:
            self._write({"id": number, "op": op} | arguments)
            until = time.monotonic() + seconds
            while True:
                with contextlib.suppress(queue.Empty):
                    answer = self._answers[number].get(timeout=0.2)
                    break
                self._check_connection()
                if time.monotonic() > until:
                    raise HostUnavailable(f"no answer in {seconds:g} s")
        finally:
            del self._answers[number]
            self._line_callbacks.pop(number, None)
        if "error" in answer:
            raise OperationFailed(answer["error"])
        return answer["result"]

    def _keep_alive(self) -> None:
        """Ping the host: the agent exits if it receives nothing, and a lost host answers nothing.

        No call may need the host for a minute, while other hosts are checked or set up.
        """
        with contextlib.suppress(HostUnavailable):
            while not self.lost.wait(_PING_SECONDS):
                self._write({"op": "ping"})

    def _check_connection(self) -> None:
        """Raise HostUnavailable if the connection is lost."""
        if self.lost.is_set():
            raise HostUnavailable(self.error)

    def run_with_input(self, command: str, data: Readable, seconds: float) -> tuple[int, str]:
        """Run another command on this connection, fed from `data`. Raises HostUnavailable."""
        try:
            transport = self._channel.transport
            return run_with_input(transport, command, data, seconds, self._check_connection)
        except Exception as error:
            why = self.error if self.lost.is_set() else str(error) or type(error).__name__
            raise HostUnavailable(why) from None

    def open_program(self, command: str) -> "Channel":
        """Start another command on this connection. Raises HostUnavailable."""
        try:
            channel = self._channel.transport.open_session(timeout=START_SECONDS)
            channel.settimeout(START_SECONDS)
            channel.exec_command(f"exec sh -c {shlex.quote(command)}")
            return channel
        except Exception as error:  # paramiko raises many things
            raise HostUnavailable(str(error) or type(error).__name__) from None

    def close(self) -> None:
        """Close the connection at once, whatever the host does."""
        self._lose("the connection was closed")

    def _lose(self, why: str) -> None:
        """Close the connection; the first reason given counts. Who waits or writes is released."""
        if not self.lost.is_set():
            self.error = why
            self.lost.set()
        with contextlib.suppress(Exception):
            self._channel.close()

    def _write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._writing:
                self._channel.send(line)
        except Exception as error:
            self._lose(str(error) or type(error).__name__)
            raise HostUnavailable(self.error) from None

    def _read(self) -> None:
        """Read messages until the connection is lost; pings make a host that lives answer."""
        try:
            for line in self._channel.lines():
                self._dispatch(json.loads(line))
            self._lose("the host closed the connection")
        except TimeoutError:
            self._lose(f"no answer for {SILENT_SECONDS:g} s")
        except Exception as error:
            self._lose(str(error) or type(error).__name__)

    def _dispatch(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        if number is None:
            self._on_message(message)
        elif "said" in message:
            if listener := self._line_callbacks.get(number):
                listener(message["said"])
        elif answer := self._answers.get(number):
            answer.put(message)
