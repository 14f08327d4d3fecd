"""Connections to the hosts of runs that pages show, where no other frontend is connected.

A connection is a frontend of its own, `--logs=learners`, whose output nobody reads: it copies the
states of processes, the learners' log and their rows, as it does for a user. It ends with the
dashboard, even if that is killed, and some time after the last page that shows the run was closed.
"""

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

from impala_mm.runtime.lifecycle import OWNER_VARIABLE
from launcher.dashboard.control import frontend_command
from launcher.supervise.run_registry import Run, UnreadableRecord
from launcher.supervise.task import LEARNERS

_UNSHOWN_SECONDS = 60.0  # after which a connection ends
_RETRY_SECONDS = 60.0  # between two starts for a run, such as one whose hosts refuse the login
_END_SECONDS = 10.0  # timeout for a connection to end


class HostLinks:
    """The connections of one dashboard."""

    def __init__(self, flags: Sequence[str] = ()):
        """Connect with these flags of the user, such as --ssh_config."""
        self._flags = flags
        self._links: dict[str, subprocess.Popen] = {}
        self._tried: dict[str, float] = {}  # by run: when a connection was started last
        self._ending: list[subprocess.Popen] = []
        self._shown: dict[str, float] = {}  # by run: when a page showed it last

    def keep(self, shown: Iterable[str]) -> None:
        """Connect to the hosts of these runs, and end connections that nobody needs any more."""
        self._ending = [process for process in self._ending if process.poll() is None]
        now = time.monotonic()
        self._shown |= dict.fromkeys(shown, now)
        for name, seen in list(self._shown.items()):
            link = self._links.get(name)
            if now - seen > _UNSHOWN_SECONDS:
                del self._shown[name]
                self._tried.pop(name, None)
                if link:
                    self._end(self._links.pop(name))
            elif link and link.poll() is None:
                continue
            elif now - self._tried.get(name, -math.inf) > _RETRY_SECONDS and _is_out_of_sight(name):
                self._tried[name] = now
                try:
                    self._links[name] = self._start(name)
                except OSError as error:
                    print(f"[dashboard] {name}: cannot connect: {error}", file=sys.stderr)

    def end(self) -> None:
        """End all connections, and wait for their end."""
        while self._links:
            self._end(self._links.popitem()[1])
        for process in self._ending:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str) -> subprocess.Popen:
        return subprocess.Popen(
            frontend_command(name, f"--logs={LEARNERS}", self._flags),
            stdin=subprocess.PIPE,  # its end, which this process holds, ends it
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {OWNER_VARIABLE: "yes"},
            start_new_session=True,
        )

    def _end(self, link: subprocess.Popen) -> None:
        """Let a connection end."""
        assert link.stdin
        link.stdin.close()
        self._ending.append(link)


def _is_out_of_sight(name: str) -> bool:
    """Return whether a run has other hosts, and no frontend is connected to any of them."""
    run = Run(name)
    with contextlib.suppress(UnreadableRecord):  # no frontend could connect
        record = run.record
        return bool(record and record.targets and all(map(run.why_away, record.targets)))
    return False
