"""The files of another host, by the calls that `launcher.node.file_service` answers on this one."""

import contextlib
import json
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from launcher.node.file_service import About, Stream, receive, send, until_empty
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import Failed, Lost

_SILENT_SECONDS = 120.0  # for an answer: a digest of a long file takes a while


class End(Protocol):
    """Where files come from, or go to; `launcher.node.file_service` says what each call does."""

    def listing(self, folder: str) -> dict[str, About]:
        """Every file."""

    def about(self, paths: Sequence[str]) -> list[About | None]:
        """Of each."""

    def digests(self, asked: Sequence[Any]) -> list[str]:
        """Of parts."""

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """Pieces, an empty one after each part."""

    def write(self, path: str, offset: int, pieces: Iterable[bytes]) -> None:
        """From there on."""

    def rename(self, old: str, new: str) -> None:
        """What was there is replaced."""

    def aside(self, path: str) -> str:
        """Its new name."""

    def link(self, path: str, to: str) -> None:
        """What was there is replaced."""

    def remove(self, path: str) -> None:
        """Whatever it is."""


class FilesThere:
    """Of one host; its channel is opened when it is needed, and again after it was lost."""

    def __init__(self, place: str, open_channel: Callable[[], Any]):
        """`open_channel`: to a program that serves; raises Lost, Failed."""
        self._place, self._open = place, open_channel
        self._channel: Any = None
        self._in: Stream
        self._out: Stream
        self._closed = False
        self._talking = threading.Lock()

    def listing(self, folder: str) -> dict[str, About]:
        """As `End` says, like all that follow. Raises Lost, Failed."""
        return self._call("listing", folder)

    def about(self, paths: Sequence[str]) -> list[About | None]:
        """As `End` says."""
        return self._call("about", list(paths)) if paths else []

    def digests(self, asked: Sequence[Any]) -> list[str]:
        """As `End` says."""
        return self._call("digests", list(asked)) if asked else []

    def read(self, parts: Sequence[Any]) -> Iterator[bytes]:
        """As `End` says."""
        if not parts:
            return
        with self._in_step():
            self._ask("read", list(parts))
            for _ in parts:
                yield from until_empty(self._in)
                yield b""

    def write(self, path: str, offset: int, pieces: Iterable[bytes]) -> None:
        """As `End` says."""
        with self._in_step():
            self._ask("write", path, offset)
            for piece in pieces:
                send(self._out, piece)
            send(self._out, b"")
            self._out.flush()
            answer = json.loads(receive(self._in))
        self._result(answer)

    def rename(self, old: str, new: str) -> None:
        """As `End` says."""
        self._call("rename", old, new)

    def aside(self, path: str) -> str:
        """As `End` says."""
        return self._call("aside", path)

    def link(self, path: str, to: str) -> None:
        """As `End` says."""
        self._call("link", path, to)

    def remove(self, path: str) -> None:
        """As `End` says."""
        self._call("remove", path)

    def close(self) -> None:
        """For good; a call that is under way fails."""
        self._closed = True
        self._hang_up()

    def _call(self, op: str, *said: Any) -> Any:
        with self._in_step():
            self._ask(op, *said)
            answer = json.loads(receive(self._in))
        return self._result(answer)

    def _result(self, answer: dict[str, Any]) -> Any:
        if "error" in answer:
            raise Failed(f"{self._place}: {answer['error']}")
        return answer["result"]

    def _ask(self, op: str, *said: Any) -> None:
        send(self._out, json.dumps({"op": op, "said": said}).encode())
        self._out.flush()

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """What is not heard to its end would be taken for the next answer: then it hangs up."""
        with self._talking:
            try:
                if self._closed:
                    raise Lost(f"{self._place}: it was hung up")
                if self._channel is None:
                    self._channel = self._open()
                    self._channel.settimeout(_SILENT_SECONDS)
                    self._in = self._channel.makefile("rb", 1 << 16)
                    self._out = self._channel.makefile("wb", 1 << 16)
                yield
            except (Lost, Failed):
                self._hang_up()
                raise
            except (OSError, EOFError, ValueError) as error:
                self._hang_up()
                why = str(error) or "the connection is lost"
                raise Lost(f"{self._place}: {why}") from None
            except BaseException:
                self._hang_up()
                raise

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(Exception):
                channel.close()


def of(hosts: Hosts, place: str) -> FilesThere:
    """Of a run's host other than this."""

    def open_channel() -> Any:
        return hosts.there[place].program(shlex.join(hosts.call(place, "files")))

    return FilesThere(place, open_channel)
