"""The names of runs: chosen when a run starts, and found when a command about a run names none.

A run that has ended keeps its name, with its record and windows, until `--stop` removes them, or
until the same run is resumed.
"""

import contextlib
import itertools
import math
import os
import socket
from collections.abc import Iterator, Mapping

from launcher.follow import status
from launcher.follow.status import state_label
from launcher.hosts.hosts import Hosts, run_libtmux
from launcher.hosts.remote_node import OperationFailed
from launcher.supervise import file_lock, tmux
from launcher.supervise.callbacks import Say
from launcher.supervise.run_registry import (
    Run,
    RunInUse,
    UnreadableRecord,
    describe_writer,
    is_same_folder,
    readable_runs,
    run_names,
    runs_folder,
)
from launcher.supervise.task import LEARNERS

_OWN_NAME = "without --tmux_sess, this run gets a name of its own"


class NameTakenOnHost(Exception):
    """An error: another run has the name on another host; the message says which."""


@contextlib.contextmanager
def reserve(
    name: str, is_requested: bool, logdir: str, say: Say, taken: Mapping[str, str] | None = None
) -> Iterator[Run]:
    """Choose the name of a new run, and keep it from other frontends for a `with` block.

    The name is `name`, which must be free if it `is_requested`; otherwise it gets the first number
    that is free, unless the run in `logdir` has ended and is resumed, which keeps its name.
    `logdir`: the run's absolute folder, or empty: a new one. `taken`: names that are taken on other
    hosts, and why. Raises RunInUse if the name is taken, or if another run writes to the folder.
    """
    folder = runs_folder().parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as held:
        # Frontends choose one after the other.
        choosing = file_lock.acquire(folder / "names.lock", timeout=math.inf)
        assert choosing is not None
        with os.fdopen(choosing):
            if logdir:
                refuse_folder_in_use(logdir, describe_writer(logdir))
            run, why = _take_name(name, is_requested, logdir, held, taken or {})
        if why:
            say(f"note: {why}: this run is named {run.name}")
        yield run


def refuse_folder_in_use(logdir: str, writer: str) -> None:
    """Raise RunInUse if there is a `writer`, which writes to the folder."""
    if writer:
        raise RunInUse(f"--logdir={logdir}: {writer} is writing to it; choose another folder")


def refuse_taken_on_hosts(hosts: Hosts, logdir: str) -> None:
    """Raise NameTakenOnHost if a host that is connected knows another run of this name."""

    def ask(host_id: str) -> None:
        here = socket.gethostname()
        hosts.call(host_id, "refuse_taken_name", logdir=logdir, started_from=here)

    connected = [host_id for host_id, node in hosts.remote_nodes.items() if not node.error]
    for error in hosts.for_each(ask, connected).values():
        if isinstance(error, OperationFailed):
            raise NameTakenOnHost(str(error))


def find(name: str, is_requested: bool) -> Run:
    """Return the run that a command is about: the one named, or the only one, or the only running.

    Raises RunInUse, which lists the runs, if there are several.
    """
    names = run_names()
    if is_requested or not names:
        return Run(name)
    running = [run.name for run, _ in readable_runs(runs_folder()) if run.is_running()]
    for some in (names, running):
        if len(some) == 1:
            return Run(some[0])
    width = max(map(len, names))
    rows = [f"\n  {each:{width}}  {_describe(Run(each))}" for each in names]
    raise RunInUse(
        f"there are several runs: name one by --tmux_sess=NAME (--stop also removes one that has "
        f"ended):{''.join(rows)}"
    )


def _take_name(
    name: str,
    is_requested: bool,
    logdir: str,
    held: contextlib.ExitStack,
    taken: Mapping[str, str],
) -> tuple[Run, str]:
    """Lock the first free name; return its run, and why `name` itself was not taken, if so."""
    resumed = "" if is_requested else _find_ended(logdir)
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    why = ""
    for chosen in itertools.chain([resumed] if resumed else [], [name], numbered):
        if chosen in taken:
            why = why or taken[chosen]
            continue
        try:
            return _lock(chosen, logdir, held), "" if chosen == resumed else why
        except (RunInUse, UnreadableRecord, tmux.TmuxError) as error:
            if is_requested:
                raise
            why = why or str(error).partition(": ")[0]
    raise AssertionError


def _find_ended(logdir: str) -> str:
    """Return the name of the run in this folder, which is not running; empty if there is none."""
    runs = readable_runs(runs_folder())
    return next((run.name for run, each in runs if is_same_folder(each.logdir, logdir)), "")


def _lock(name: str, logdir: str, held: contextlib.ExitStack) -> Run:
    """Lock a name until `held` is closed, and return its run.

    Raises RunInUse, UnreadableRecord or TmuxError if the name is taken.
    """
    run = Run(name)
    with contextlib.ExitStack() as tried:  # released unless the name is free
        tried.enter_context(run.locked(logdir=logdir))
        run.refuse_running()
        record = run.record
        if record and record.elsewhere and not record.host_id_of(LEARNERS):
            raise RunInUse(
                f"the run {name} was started on {record.elsewhere}, where it may be running; "
                f"{_OWN_NAME}"
            )
        if record and not is_same_folder(record.logdir, logdir):
            raise RunInUse(
                f"the run {name} has ended, and its record and windows are kept until --stop "
                f"--tmux_sess={name} removes them: its results are in {record.logdir}, and the "
                f"same --logdir resumes it; {_OWN_NAME}"
            )
        path = tmux.default_socket()
        if path and not (record and record.socket == path):
            _refuse_session(name, path)
        held.push(tried.pop_all())
    return run


def _refuse_session(name: str, path: str) -> None:
    """Raise TmuxError if tmux has a session of this name: a user's, or one of an unknown run.

    `path` is the socket of the tmux server.
    """
    session = tmux.Session(name, path, run_libtmux)
    session.refuse_foreign()
    if session.exists():
        raise tmux.TmuxError(
            f"tmux has a session named {name} of a run without a record: `tmux kill-session -t "
            f"{name}` closes it; {_OWN_NAME}"
        )


def _describe(run: Run) -> str:
    """Return the run's state and folder."""
    with contextlib.suppress(UnreadableRecord):
        if record := run.record:
            return f"{state_label(status.run_state(run))}, {record.logdir}"
    return "its record cannot be read"
