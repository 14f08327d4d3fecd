"""Another host's part of a run, over SSH: the same calls as `Here`, answered by `far` there.

A thread of its own keeps the connection while it is wanted: where it is lost, it is made again, for
ever, with longer and longer pauses. What is heard meanwhile (states, what files say) goes to `Ear`.
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

from launcher.node.agent_main import MARK
from launcher.remote import agent_bundle
from launcher.remote.stdin_feed import Readable, feed
from launcher.ssh.ssh_config import Settings, Target, Unreachable, route

if TYPE_CHECKING:
    from paramiko import Channel

    from launcher.ssh.connection import Connection, Credential

ANSWER_SECONDS = 30.0
_PING_SECONDS = 2.0
_SILENT_SECONDS = 12.0  # without a word from there the connection counts as lost
_SILENT = f"nothing was heard from it for {_SILENT_SECONDS:g} s"
_START_SECONDS = 30.0  # for Python there to answer
_PAUSE_SECONDS = 15.0  # at most, between attempts


class Lost(Exception):
    """A host does not answer, or no longer; says which and why."""


class Failed(Exception):
    """A host could not do what it was asked; its sentence."""


class Ear(Protocol):
    """Who is told what comes from a host."""

    def states(self, place: str, states: dict[str, Any], whole: bool) -> None:
        """Of its processes: those that changed, or all that are there; it is in touch."""

    def data(self, place: str, path: str, offset: int, data: str) -> None:
        """More of a file that is followed; base64."""

    def lost(self, place: str, why: str) -> None:
        """It is not in touch."""

    def found(self, place: str) -> None:
        """It is in touch again: nothing is followed yet."""


class There:
    """One host."""

    def __init__(self, place: str, target: Target, settings: Settings, pythons: list[str]):
        """`pythons`: that may be there, the best first."""
        self.place, self.target = place, target
        self.route = route(target, settings)
        self._settings, self._pythons = settings, pythons
        self._line: _Line | None = None
        self.credential: Credential | None = None
        self.why = "nobody asked it yet"
        self._ear: Ear | None = None
        self._closed = threading.Event()
        self._name = ""

    @property
    def address(self) -> str:
        """By which others reach it, too."""
        return self.route.address

    def connect(self, name: str) -> None:
        """For the run of this name. Raises Lost."""
        self._name = name
        try:
            from launcher.ssh.connection import connect  # noqa: PLC0415 - paramiko takes a while

            connected = connect(self.target, self._settings)
            self.credential = connected.credential
            self._line = _Line(connected, agent_bundle.command(self._pythons), name, self._heard)
        except (Unreachable, Lost) as error:
            self.why = str(error)
            raise Lost(self.why) from None
        self.why = ""

    def keep(self, ear: Ear) -> None:
        """In touch from now on; `ear` is told what it says."""
        self._ear = ear
        threading.Thread(target=self._keep, name=f"keep {self.place}", daemon=True).start()

    def close(self) -> None:
        """What goes on there goes on."""
        self._closed.set()
        if self._line:
            self._line.close()

    def call(self, op: str, *, within: float = ANSWER_SECONDS, **arguments: Any) -> Any:
        """Its answer, within so many seconds. Raises Lost, or Failed."""
        line = self._line
        if line is None or line.dead:
            raise Lost(f"{self.place}: {self.why or 'the connection is lost'}")
        try:
            return line.call(op, within, arguments)
        except Lost as error:
            raise Lost(f"{self.place}: {error}") from None
        except Failed as error:
            raise Failed(f"{self.place}: {error}") from None

    def ask(
        self,
        command: list[str],
        workdir: str = "",
        environment: dict[str, str] | None = None,
        seconds: float = 60.0,
        heard: Callable[[str], None] | None = None,
    ) -> tuple[int, str]:
        """As `Here.ask`; a host that is lost is an answer, too."""
        asked = {"command": command, "workdir": workdir, "environment": environment or {}}
        line = self._line
        if line is None:
            return 255, f"{self.why}\n"
        try:
            code, said = line.call("ask", seconds + 10, asked | {"seconds": seconds}, heard)
        except (Lost, Failed) as error:
            return 255, f"{error}\n"
        return code, said

    def run_by_hand(self, command: str, data: Readable, seconds: float) -> tuple[int, str]:
        """A command of its own, fed from a file: exit code and output. Raises Lost."""
        line = self._line
        if line is None:
            raise Lost(f"{self.place}: {self.why}")
        return line.feed(command, data, seconds)

    def program(self, command: str) -> "Channel":
        """Another program on this connection, by its input and output. Raises Lost."""
        line = self._line
        if line is None or line.dead:
            raise Lost(f"{self.place}: {self.why or 'the connection is lost'}")
        try:
            return line.program(command)
        except Lost as error:
            raise Lost(f"{self.place}: {error}") from None

    # -- while it is kept

    def _keep(self) -> None:
        assert self._ear
        pause = 1.0
        if self._line:
            self._ear.found(self.place)
        while not self._closed.is_set():
            line = self._line
            if line and not line.dead and line.ping():
                pause = 1.0
                self._closed.wait(_PING_SECONDS)
                continue
            if line:
                self.why = line.why or _SILENT
                line.close()
                self._line = None
            if self._closed.is_set():  # we hung up: that is no news of the host, for anybody
                return
            self._ear.lost(self.place, self.why)
            if self._closed.wait(pause):
                return
            pause = min(1.5 * pause, _PAUSE_SECONDS)
            with contextlib.suppress(Lost):
                self.connect(self._name)
                self._ear.found(self.place)

    def _heard(self, message: dict[str, Any]) -> None:
        if not self._ear:
            return
        if "states" in message:
            self._ear.states(self.place, message["states"], message.get("whole", False))
        elif "file" in message:
            self._ear.data(self.place, message["file"], message["offset"], message["data"])


class _Line:
    """One connection and the program at its other end."""

    def __init__(
        self,
        connection: "Connection",
        command: str,
        name: str,
        heard: Callable[[dict[str, Any]], None],
    ):
        self._client, self._heard = connection.client, heard
        self.dead, self.why = False, ""
        self._last = self._pinged = time.monotonic()
        self._numbers = itertools.count()
        self._answers: dict[int, queue.Queue] = {}
        self._listeners: dict[int, Callable[[str], None]] = {}
        self._writing = threading.Lock()
        try:
            transport = self._client.get_transport()
            assert transport
            self._channel = transport.open_session(timeout=_START_SECONDS)
            self._channel.settimeout(_START_SECONDS)
            self._channel.exec_command(command)
            self._channel.sendall(agent_bundle.header(name) + agent_bundle.content())
            self._begin()
        except Lost:
            self._client.close()
            raise
        except Exception as error:  # paramiko raises many things, sockets others
            self._client.close()
            what = str(error) or type(error).__name__
            raise Lost(
                f"{connection.credential.host}: Python did not start there: {what}"
            ) from None
        threading.Thread(target=self._read, name=f"read {name}", daemon=True).start()

    def _begin(self) -> None:
        """Whatever a login says first is passed over."""
        self._file = self._channel.makefile("rb")
        said = []
        for line in self._file:
            text = line.decode(errors="replace").strip()
            if text == MARK:
                self._channel.settimeout(_SILENT_SECONDS)
                return
            said.append(text)
        errors = self._channel.makefile_stderr("rb").read(4000).decode(errors="replace")
        last = [*said, *errors.splitlines()][-1:] or ["it said nothing"]
        host = self._client.get_transport().getpeername()[0]  # type: ignore[union-attr]
        raise Lost(f"{host}: its Python did not start: {last[0].strip()}")

    def call(
        self,
        op: str,
        seconds: float,
        arguments: dict[str, Any],
        heard: Callable[[str], None] | None = None,
    ) -> Any:
        """Raises Lost, Failed."""
        number = next(self._numbers)
        self._answers[number] = queue.Queue(1)
        if heard:
            self._listeners[number] = heard
            arguments = arguments | {"stream": True}
        try:
            self._write({"id": number, "op": op} | arguments)
            until = time.monotonic() + seconds
            while True:
                with contextlib.suppress(queue.Empty):
                    answer = self._answers[number].get(timeout=0.2)
                    break
                self._stay_in_touch()
                if time.monotonic() > until:
                    raise Lost(f"no answer in {seconds:g} s")
        finally:
            del self._answers[number]
            self._listeners.pop(number, None)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]

    def ping(self) -> bool:
        """False: it is dead, or silent for too long."""
        with contextlib.suppress(Lost):
            self._pinged = time.monotonic()
            self._write({"op": "ping"})
            return time.monotonic() - self._last < _SILENT_SECONDS
        return False

    def _stay_in_touch(self) -> None:
        """While somebody waits for an answer; it takes who is silent for gone. Raises Lost."""
        if self.dead:
            raise Lost(self.why or "the connection is lost")
        if time.monotonic() - self._pinged > _PING_SECONDS and not self.ping():
            raise Lost(self.why or _SILENT)

    def feed(self, command: str, data: Readable, seconds: float) -> tuple[int, str]:
        """Another command on this connection, with `data` (a file) as its input. Raises Lost."""
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), daemon=True).start()
        try:
            transport = self._client.get_transport()
            assert transport
            return feed(transport, command, data, seconds, self._stay_in_touch)
        except Exception as error:
            raise Lost(self.why or str(error) or type(error).__name__) from None
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        """Who writes much to a host that is gone waits for ever, unless somebody closes it."""
        while not over.wait(_PING_SECONDS):
            if time.monotonic() - self._last > _SILENT_SECONDS:
                self.why = self.why or _SILENT
                self.close()
                return

    def program(self, command: str) -> "Channel":
        """Another command on this connection. Raises Lost."""
        try:
            transport = self._client.get_transport()
            assert transport
            channel = transport.open_session(timeout=_START_SECONDS)
            channel.settimeout(_START_SECONDS)
            channel.exec_command(f"exec sh -c {shlex.quote(command)}")
            return channel
        except Exception as error:  # paramiko raises many things
            raise Lost(str(error) or type(error).__name__) from None

    def close(self) -> None:
        """At once, whatever the other end does."""
        self.dead = True
        with contextlib.suppress(Exception):
            self._client.close()

    def _write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._writing:
                self._channel.sendall(line)
        except Exception as error:
            self.why = self.why or str(error) or type(error).__name__
            self.dead = True
            raise Lost(self.why) from None

    def _read(self) -> None:
        try:
            for line in self._file:
                self._last = time.monotonic()
                self._take(json.loads(line))
            self.why = self.why or "it closed the connection"
        except TimeoutError:
            self.why = self.why or _SILENT
        except Exception as error:
            self.why = self.why or str(error) or type(error).__name__
        self.dead = True

    def _take(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        if number is None:
            self._heard(message)
        elif "said" in message:
            if listener := self._listeners.get(number):
                listener(message["said"])
        elif answer := self._answers.get(number):
            answer.put(message)
