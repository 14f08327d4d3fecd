"""The ways in which a chaos run is disturbed, each drawn with its place and its seconds by a seed.

Between the begin and the end of a disturbance a process is stopped, a cable is cut, a disk is full,
a host has no power; a process that is killed is not started again by the disturbance. The clock of
a host cannot be moved: all simulated hosts have this machine's.
"""

import contextlib
import errno
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hosts import Lan

RUN = "/root/run"  # the run's folder
LEARNERS, ACTORS = ("learner1", "learner2"), ("actor1", "actor2", "actor3")
_SLOW = "rate 300kbit burst 16kb latency 500ms"
_PIECE = 1 << 20  # bytes


class Disturbance(NamedTuple):
    """A fault, and how long it lasts."""

    words: str
    seconds: float  # between `begin` and `end`
    begin: Callable[[], str]  # returns what it did, if that depends on what it found
    end: Callable[[], None] = lambda: None


class _Target(NamedTuple):
    """Processes of one kind."""

    words: str
    hosts: tuple[str, ...]  # on one of which, drawn, or on all of which they are searched
    command: str  # a part of their command lines
    programs: tuple[str, ...] = ("python",)  # beginnings of their programs' names
    everywhere: bool = False  # they are searched on all hosts


_RANK = _Target("a learner", LEARNERS, "--job_name=learner")
_LEARNERS_SUPERVISOR = _Target(
    "the learners' supervisor", LEARNERS, "/learners/task.json", everywhere=True
)
_MPIRUN = _Target("mpirun", LEARNERS, "--job_name=learner", ("mpirun", "prterun"), everywhere=True)
_DAEMON = _Target("mpirun's daemon", LEARNERS, "/bin/prted", ("prted",), everywhere=True)
_LEARNERS_HOST = _Target("what runs mpirun's daemon", LEARNERS, "mpi_host", everywhere=True)
_HOSTS_SUPERVISOR = _Target(
    "the supervisor of another learners' host", LEARNERS, "/learners-1/task.json", everywhere=True
)
_ACTOR = _Target("an actor", ACTORS, "--job_name=actor")
_SUPERVISOR = _Target("an actor's supervisor", ACTORS, "launcher.supervise.supervisor")
_AGENT = _Target("the frontend's agent", (*LEARNERS, *ACTORS), "agent_main")
_TMUX = _Target("tmux", (*LEARNERS, *ACTORS), "tmux ", ("tmux",))
FRONTEND = _Target("the frontend", ("laptop",), "run_experiment_mm_raw.py", everywhere=True)

_KILLED = (
    *(_RANK, _LEARNERS_SUPERVISOR, _MPIRUN, _DAEMON, _LEARNERS_HOST, _HOSTS_SUPERVISOR),
    *(_ACTOR, _SUPERVISOR, _AGENT, _TMUX, FRONTEND),
)
_STOPPED = (_RANK, _LEARNERS_SUPERVISOR, _MPIRUN, _DAEMON, _ACTOR, _SUPERVISOR, FRONTEND)


def draw_all(lan: Lan, drawn: random.Random) -> Iterator[Disturbance]:
    """Yield disturbances without end: each kind once, in a random order, then again."""
    kinds: list[Callable[[], Disturbance]] = [
        *(lambda target=target: _kill(lan, drawn, target) for target in _KILLED),
        *(lambda target=target: _stop(lan, drawn, target) for target in _STOPPED),
        lambda: _cut(lan, drawn, LEARNERS),
        lambda: _cut(lan, drawn, ACTORS),
        lambda: _cut(lan, drawn, ("laptop",)),
        lambda: _lose_packets(lan, drawn, LEARNERS, LEARNERS),
        lambda: _lose_packets(lan, drawn, ACTORS[:2], LEARNERS),
        lambda: _lose_packets(lan, drawn, LEARNERS, (*ACTORS[:2], "laptop")),
        lambda: _slow_down(lan, drawn, (*LEARNERS, *ACTORS)),
        lambda: _fill(lan, drawn, LEARNERS),
        lambda: _restart(lan, drawn, LEARNERS),
        lambda: _restart(lan, drawn, ACTORS),
        lambda: _restart(lan, drawn, ("laptop",)),
    ]
    while True:
        drawn.shuffle(kinds)
        for kind in kinds:
            yield kind()


def _find(lan: Lan, target: _Target, name: str) -> list[tuple[int, str]]:
    """Return the pids of a target's processes, and their hosts."""
    found = []
    for each in target.hosts if target.everywhere else (name,):
        host = lan.hosts[each]
        for pid in host.pids(target.command) if host.up else ():
            with contextlib.suppress(OSError):
                program = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
                if program.rpartition("/")[2].startswith(target.programs):
                    found.append((pid, each))
    return found


def _signal(lan: Lan, target: _Target, name: str, number: signal.Signals) -> str:
    reached = []
    for pid, where in _find(lan, target, name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(where)
    return f"process on {', '.join(reached)}" if reached else "there was none"


def _words(target: _Target, name: str) -> str:
    return target.words if target.everywhere else f"{target.words} on {name}"


def _kill(lan: Lan, drawn: random.Random, target: _Target) -> Disturbance:
    name = drawn.choice(target.hosts)
    # A new frontend is started at the end.
    seconds = drawn.uniform(3, 20) if target is FRONTEND else 0.0
    return Disturbance(
        f"kill -9 {_words(target, name)}",
        seconds,
        lambda: _signal(lan, target, name, signal.SIGKILL),
    )


def _stop(lan: Lan, drawn: random.Random, target: _Target) -> Disturbance:
    name, seconds = drawn.choice(target.hosts), drawn.uniform(3, 25)
    return Disturbance(
        f"stop {_words(target, name)} for {seconds:.0f} s",
        seconds,
        lambda: _signal(lan, target, name, signal.SIGSTOP),
        lambda: _ignored(_signal(lan, target, name, signal.SIGCONT)),
    )


def _cut(lan: Lan, drawn: random.Random, names: tuple[str, ...]) -> Disturbance:
    host, seconds = lan.hosts[drawn.choice(names)], drawn.uniform(4, 40)
    return Disturbance(
        f"cut the cable of {host.name} for {seconds:.0f} s",
        seconds,
        lambda: _ignored(host.cut()),
        host.restore,
    )


def _lose_packets(
    lan: Lan, drawn: random.Random, sources: tuple[str, ...], sinks: tuple[str, ...]
) -> Disturbance:
    source, seconds = drawn.choice(sources), drawn.uniform(4, 30)
    sink = drawn.choice([name for name in sinks if name != source])
    one, other = lan.hosts[source], lan.hosts[sink]
    return Disturbance(
        f"lose what {source} sends to {sink} for {seconds:.0f} s",
        seconds,
        lambda: _ignored(one.lose_packets_to(other)),
        lambda: one.lose_packets_to(other, lost=False),
    )


def _slow_down(lan: Lan, drawn: random.Random, names: tuple[str, ...]) -> Disturbance:
    host, seconds = lan.hosts[drawn.choice(names)], drawn.uniform(10, 40)
    nic = next(iter(host.machine.nics))
    return Disturbance(
        f"slow down what {host.name} sends ({_SLOW}) for {seconds:.0f} s",
        seconds,
        lambda: _ignored(host.run(*f"tc qdisc add dev {nic} root tbf {_SLOW}".split())),
        lambda: _ignored(host.run(*f"tc qdisc del dev {nic} root".split())),
    )


def _fill(lan: Lan, drawn: random.Random, names: tuple[str, ...]) -> Disturbance:
    host, seconds = lan.hosts[drawn.choice(names)], drawn.uniform(5, 30)
    filler = host.path(RUN) / "filler"

    def fill() -> str:
        try:
            with filler.open("wb", buffering=0) as file:
                while True:
                    if file.write(bytes(_PIECE)) < _PIECE:
                        continue
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        return f"with {filler.stat().st_size / 1e6:.0f} MB"

    return Disturbance(
        f"fill the disk of the run's folder on {host.name} for {seconds:.0f} s",
        seconds,
        fill,
        lambda: filler.unlink(missing_ok=True),
    )


def _restart(lan: Lan, drawn: random.Random, names: tuple[str, ...]) -> Disturbance:
    host, seconds = lan.hosts[drawn.choice(names)], drawn.uniform(2, 20)
    return Disturbance(
        f"power off {host.name}, and boot it after {seconds:.0f} s",
        seconds,
        lambda: _ignored(host.kill_all()),
        host.boot,
    )


def _ignored(_: object) -> str:
    return ""
