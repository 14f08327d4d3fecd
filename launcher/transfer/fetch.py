"""A run's folder on another host, and the logs of all hosts, brought to the run's folder here.

    fetch   once, as `--fetch` asks for it; `mirroring` does the same again and again
    push    the way back: to a host on which learners are to go on

What learners say and measure is copied as it comes, anyway (`mirror`); both may write the same
bytes at the same place. Whoever brings anything here holds a lock.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.node.file_service import Files
from launcher.node.run_registry import Record, Run, home
from launcher.node.task import LEARNERS
from launcher.remote import remote_files
from launcher.remote.hosts import Hosts
from launcher.remote.progress_line import Live
from launcher.remote.remote_files import End, FilesThere
from launcher.remote.remote_node import Failed
from launcher.transfer import checkpoints as saved
from launcher.transfer.copy import Brought, Copy, Known, Offer

_WAIT_SECONDS = 600.0  # for another fetch of the same run
_TRIES = 3  # of what changes while it is read
_SAY_SECONDS = 5.0  # between two lines of progress, where there is no terminal
_SHOWN = 10  # hosts that are named
_KNOWN = ".brought.json"  # in the run's folder
Say = Callable[[str], None]
Came = Callable[[int, int], None]


class Home:
    """A run's folder here."""

    def __init__(self, run: Run, hosts: Hosts, tries: int = 1, came: Came | None = None):
        """`tries`: of what changes while it is read. `came`: as `Copy` has it."""
        self._run, self._hosts = run, hosts
        self._tries, self._came = tries, came
        self._ends: dict[str, FilesThere] = {}

    def bring(self, record: Record) -> dict[str, Brought | Exception]:
        """From every place that has something: how much it was, or why it was not all."""
        known = Known(Path(record.logdir) / _KNOWN)
        done = {place: Brought() for place in places(record)}

        def one(place: str) -> None:
            try:
                self._bring(record, place, known, done[place])
            except OSError as error:
                path = error.filename or record.logdir
                raise Failed(f"{path}: {error.strerror or error}") from None

        found = self._hosts.each(one, list(done))
        return {place: found[place] or done[place] for place in done}

    def close(self) -> None:
        """What is under way fails."""
        for end in self._ends.values():
            end.close()

    @contextlib.contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """False: another brings the same, and still does after so many seconds."""
        home().mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(home() / f"{self._run.name}.fetch.lock", os.O_CREAT | os.O_RDWR, 0o600)
        with contextlib.closing(os.fdopen(lock)):
            until = time.monotonic() + seconds
            free = False
            while not free:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    free = True
                except BlockingIOError:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.1)
            yield free

    def _bring(self, record: Record, place: str, known: Known, done: Brought) -> None:
        source = self._end(place)
        copy = Copy(Files(), record.logdir, known, self._came)
        for _ in range(self._tries):
            done.late.clear()
            if not record.shared and place == record.place(LEARNERS):
                folder = record.flags["logdir"]
                offers = offered(source, folder)
                bring_all(copy, source, f"{place}:{folder}", offers, done)
                saved.prune(copy, saved.divide(offers)[1], done)
            logs = _of_logs(source, record, place)
            bring_all(copy, source, f"{place}:{record.id}", logs, done)
            if not done.late:
                return

    def _end(self, place: str) -> End:
        if not place:
            return Files()
        if place not in self._ends:
            self._ends[place] = remote_files.of(self._hosts, place)
        return self._ends[place]


def fetch(run: Run, hosts: Hosts, record: Record, say: Say) -> int:
    """Once; the exit code."""
    if not places(record):
        say(f"nothing to fetch: all of {record.name} is on this machine, in {record.logdir}")
        return 0
    progress = _Progress(say)
    bringing = Home(run, hosts, _TRIES, progress.add)
    began = time.monotonic()
    try:
        with bringing.alone(0.0) as alone:
            pass
        if not alone:
            say("another frontend brings the same just now: this waits for it")
        with bringing.alone(_WAIT_SECONDS) as alone:
            if not alone:
                raise Failed(f"another fetch of {record.name} has gone on for {_WAIT_SECONDS:g} s")
            found = bringing.bring(record)
    finally:
        bringing.close()
        progress.end()
    lines, failures = _report(found)
    for line in [*lines, *(f"error: {failure}" for failure in failures)]:
        say(line)
    seconds = time.monotonic() - began
    say(f"all {'that came ' * bool(failures)}is in {record.logdir} ({seconds:.1f} s)")
    return int(bool(failures))


def give_back(hosts: Hosts, where: str, here: Path, there: str) -> bool:
    """Where a run is to go on from what is here, on a host that has nothing of it."""
    checkpoints = str(Path(there) / "checkpoints")
    if not (here / "checkpoints").exists() or hosts.call(where, "exists", path=checkpoints):
        return False
    push(hosts, where, here, there)
    return True


def push(hosts: Hosts, place: str, here: Path, there: str) -> Brought:
    """What a folder on a host lacks of one here. Raises Lost, Failed, OSError."""
    end = remote_files.of(hosts, place)
    done = Brought()
    try:
        source = Files()
        bring_all(Copy(end, there, Known()), source, "", offered(source, str(here)), done)
    finally:
        end.close()
    if done.wrong:
        raise Failed("; ".join(done.wrong))
    return done


def places(record: Record) -> list[str]:
    """That have something of a run which is not in its folder here."""
    found = {process["place"] for process in record.processes if not _in_folder(process, record)}
    if not record.shared:
        found.add(record.place(LEARNERS))
    return sorted(found)


def _in_folder(process: dict[str, Any], record: Record) -> bool:
    """Whether its log is in the learners' folder."""
    place, log = record.place(LEARNERS), Path(process["log"])
    return process["place"] == place and log.is_relative_to(record.flags["logdir"])


def bring_all(
    copy: Copy, source: End, origin: str, offers: dict[str, Offer], done: Brought
) -> None:
    """What grows first: it is short, and says most."""
    others, checkpoints = saved.divide(offers)
    copy.forget_coming(origin, others | {saved.path(name): None for name in checkpoints})
    copy.bring(source, origin, others, done)
    saved.bring(copy, source, origin, checkpoints, done)


def offered(source: End, folder: str) -> dict[str, Offer]:
    """By a run's folder at one end."""
    return {
        name: Offer(f"{folder}/{name}", about) for name, about in source.listing(folder).items()
    }


def _of_logs(source: End, record: Record, place: str) -> dict[str, Offer]:
    """Of processes that write elsewhere than into the learners' folder."""
    paths = {}
    for process in record.processes:
        if process["place"] == place and not _in_folder(process, record):
            for end in ("", ".1"):
                paths[f"{process['name']}.log{end}"] = f"{process['log']}{end}"
    abouts = source.about(list(paths.values()))
    return {
        name: Offer(path, about)
        for (name, path), about in zip(paths.items(), abouts, strict=True)
        if about and not about[3]
    }


def _report(found: Mapping[str, Brought | Exception]) -> tuple[list[str], list[str]]:
    """What came from where, and what did not."""
    lines, rest = [], Brought()
    failures = [str(each) for each in found.values() if isinstance(each, Exception)]
    came = {p or "this machine": each for p, each in found.items() if isinstance(each, Brought)}
    for place, each in came.items():
        failures += [f"{place}: {sentence}" for sentence in each.wrong]
        failures += [f"{place}: {name} changed while it was read" for name in each.late]
    order = sorted((p for p in came if came[p].bytes), key=lambda p: came[p].bytes, reverse=True)
    for place in order[:_SHOWN]:
        lines.append(f"{place}: {_amount(came[place])}")
    for place in order[_SHOWN:]:
        rest.bytes += came[place].bytes
        rest.files += came[place].files
    if order[_SHOWN:]:
        lines.append(f"{len(order) - _SHOWN} others: {_amount(rest)}")
    if still := len(came) - len(order):
        lines.append(f"{still} host{'s' * (still > 1)} had nothing new")
    return lines, failures


def _amount(brought: Brought) -> str:
    parts = [f"{brought.bytes / 1e6:.1f} MB"]
    if brought.files:
        parts.append(f"{brought.files} file{'s' * (brought.files > 1)}")
    if brought.checkpoints:
        parts.append(f"{brought.checkpoints} checkpoint{'s' * (brought.checkpoints > 1)}")
    return ", ".join(parts)


class _Progress:
    """How much of how much came, where it takes a while. Called by many threads."""

    def __init__(self, say: Say):
        self._live, self._all, self._here = Live(say, _SAY_SECONDS), 0, 0
        self._adding = threading.Lock()

    def add(self, more: int, came: int) -> None:
        """So many bytes are to come, too; so many came."""
        with self._adding:
            self._all += more
            self._here += came
            self._live.tell(lambda: f"{self._here / 1e6:.1f} of {self._all / 1e6:.1f} MB")

    def end(self) -> None:
        """What comes next has a line of its own."""
        self._live.end()
