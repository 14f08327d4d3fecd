"""The server of a dashboard, which gives a thread only to a request whose head has arrived.

Any account of the machine can connect. What it leaves unfinished is kept without a thread, in a
bounded number and for some seconds, so that those who have the token are answered meanwhile.
"""

import re
import select
import socket
import sys
import time
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

HEAD_SECONDS = 5.0  # for the head of a request
MOST_WAITING = 200  # connections without one; a new one takes the place of the oldest
_MOST_BYTES = 1 << 16  # of a head
_HEAD_END = re.compile(rb"\n\r?\n")


class Handler(WSGIRequestHandler):
    """A handler of requests that prints none of them: their addresses hold the token."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds after which a connection that takes nothing is closed

    def log(self, type: str, message: str, *args: object) -> None:
        """Print errors alone."""
        if type == "error":
            print(f"[dashboard] {message % args}", file=sys.stderr)


class Server(ThreadedWSGIServer):
    """A server at a socket that listens; a connection is closed after its first answer."""

    def __init__(self, host: str, port: int, app: Any, listener: int):
        """Serve the application `app` at the socket of this number."""
        super().__init__(host, port, app, Handler, fd=listener)
        self.socket.setblocking(False)
        self._events = select.epoll()
        self._events.register(self.socket, select.EPOLLIN)
        # By number: connections, and the deadlines of their heads; in order.
        self._waiting: dict[int, tuple[socket.socket, Any, float]] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when `get_request` has something to do."""
        return self._events.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return a connection whose head has arrived. Raises BlockingIOError if there is none.

        Each call processes one event.
        """
        for number, _ in self._events.poll(0, 1):
            if number == self.socket.fileno():
                self._accept()
            elif request := self._receive(number):
                return request
        raise BlockingIOError

    def _accept(self) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._close_oldest()
        try:
            connection, address = self.socket.accept()
        except OSError:  # it has ended; or no file can be opened, until others have ended
            if self._waiting:
                self._close_oldest()
            return
        connection.setblocking(False)
        # An event is what has arrived since the last one.
        self._events.register(connection, select.EPOLLIN | select.EPOLLET)
        deadline = time.monotonic() + HEAD_SECONDS
        self._waiting[connection.fileno()] = connection, address, deadline

    def _receive(self, number: int) -> tuple[socket.socket, Any] | None:
        """Return a connection if its head is complete; close it if it never will be."""
        connection, address, _ = self._waiting[number]
        try:
            head = connection.recv(_MOST_BYTES, socket.MSG_PEEK)
            is_complete = _HEAD_END.search(head) is not None
            if is_complete:  # no address reads a request's content, and none is waited for
                connection.shutdown(socket.SHUT_RD)
            elif 0 < len(head) < _MOST_BYTES:
                return None
        except BlockingIOError:
            return None
        except OSError:  # its peer has ended it
            is_complete = False
        del self._waiting[number]
        self._events.unregister(connection)
        if is_complete:
            return connection, address
        connection.close()
        return None

    def _close_oldest(self) -> None:
        self._waiting.pop(next(iter(self._waiting)))[0].close()

    def service_actions(self) -> None:
        """Close connections whose heads did not arrive in time; called after each event."""
        super().service_actions()
        while self._waiting and next(iter(self._waiting.values()))[2] < time.monotonic():
            self._close_oldest()
