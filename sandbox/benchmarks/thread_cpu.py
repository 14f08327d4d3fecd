"""What a run's processes took of the CPU, by what they did: read from the kernel, thread by thread.

`throughput.py` takes a snapshot at both ends of its window. Threads are told apart by their names
(`impala_mm/threads.py`) and by whose process they are in, a learner's or an actor's.

TensorFlow's threads in a learner do whatever is to be computed there: with --inference=learner
inference and training cannot be told apart, and count as the stage `network` together. The stage
serialization is the wire's two ends; an unroll's encoding is Python's in the actor, its decoding
the queue's. Environments that are stepped in Python count as Python, all but Atari's.
"""

import contextlib
import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

STAGES = (
    *("environment", "inference", "serialization", "queue", "training", "network", "Python"),
    "other",
)
_WIRE = ("grpc", "event_engine", "lifeguard", "timer_manager", "resource_quota", "default-execut")
_NAMED = {
    "environment": "environment",
    "link": "serialization",
    "prefetch": "queue",
    "training": "training",
    "lockstep": "Python",
    "pulse": "Python",
    "stepping": "Python",
    "playing": "Python",
}
_TENSORFLOW = ("tf_intra", "tf_Compute", "tf_graph_runner")
_ACTOR = "--job_name=actor"


class Threads(NamedTuple):
    """A process's CPU seconds since it began."""

    role: str  # learner or actor
    main: int  # the thread that Python runs in
    total: float  # of all its threads, those that have ended, too
    threads: dict[int, tuple[str, float]]  # by id: name and seconds of those that run


def snapshot(root: int, proc: Path = Path("/proc")) -> dict[int, Threads]:
    """Of a process and of all below it, by id."""
    found = {}
    for process in family(root, proc):
        try:
            words = (proc / str(process) / "cmdline").read_text().split("\0")
            total = _seconds((proc / str(process) / "stat").read_text())
            tasks = list((proc / str(process) / "task").iterdir())
        except OSError:  # it ended meanwhile
            continue
        threads = {}
        for task in tasks:
            with contextlib.suppress(OSError):  # this thread did
                stat = (task / "stat").read_text()
                threads[int(task.name)] = _name(stat), _seconds(stat)
        role = "actor" if _ACTOR in words else "learner"
        found[process] = Threads(role, process, total, threads)
    return found


def family(root: int, proc: Path = Path("/proc")) -> list[int]:
    """A process and all that it, and those below it, started."""
    children = defaultdict(list)
    for stat in proc.glob("[0-9]*/stat"):
        try:
            children[int(_fields(stat.read_text())[1])].append(int(stat.parent.name))
        except OSError:
            continue
    found = [root]
    for process in found:  # which grows meanwhile
        found += children[process]
    return found


def spent(
    before: dict[int, Threads], after: dict[int, Threads], place: str = "actor"
) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds between two snapshots: (by stage, and by name of what is in the stage other).

    `place`: where inference is done.
    """
    by_stage: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    unknown: dict[str, float] = defaultdict(float)
    for process, now in after.items():
        old = before.get(process, Threads(now.role, now.main, 0.0, {}))
        known = 0.0
        for thread, (name, seconds) in now.threads.items():
            taken = seconds - old.threads.get(thread, ("", 0.0))[1]
            known += taken
            doing = stage(now.role, name, thread == now.main, place)
            by_stage[doing] += taken
            if doing == "other":
                unknown[f"{now.role}'s {name}"] += taken
        ended = max(now.total - old.total - known, 0.0)
        by_stage["other"] += ended
        unknown[f"{now.role}'s threads that ended"] += ended
    return by_stage, {name: seconds for name, seconds in unknown.items() if seconds > 0}


def stage(role: str, name: str, main: bool, place: str = "actor") -> str:
    """What a thread does."""
    if name.startswith(_WIRE):
        return "serialization"
    if name in _TENSORFLOW:
        computes = "training" if place == "actor" else "network"
        return computes if role == "learner" else "inference"
    if main:
        return "Python"
    return _NAMED.get(name, "other")


def machine(proc: Path = Path("/proc")) -> float:
    """CPU seconds of all processes of this machine so far; 0 where the kernel does not say."""
    try:
        fields = (proc / "stat").read_text().split("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    busy = [int(value) for i, value in enumerate(fields) if i not in {3, 4}]  # idle, waiting
    return sum(busy) / os.sysconf("SC_CLK_TCK")


def session_of(stat: str) -> int:
    """The first process of the session that one is in, of the text of its /proc/ID/stat."""
    return int(_fields(stat)[3])


def _name(stat: str) -> str:
    return stat[stat.index("(") + 1 : stat.rindex(")")]


def _fields(stat: str) -> list[str]:
    """Those after the name: state, parent, group, session..."""
    return stat[stat.rindex(")") + 2 :].split()


def _seconds(stat: str) -> float:
    user, system = _fields(stat)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def session(leader: int, proc: Path = Path("/proc")) -> float:
    """CPU seconds of all processes of a session so far, of those that ended within it, too."""
    total = 0.0
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if session_of(text) == leader:
            total += sum(map(int, _fields(text)[11:15]))
    return total / os.sysconf("SC_CLK_TCK")
