"""The CPU time of a run's processes by activity, read from the kernel for each thread.

`throughput.py` takes a snapshot at the start and at the end of its window. Threads are identified
by their names (`impala_mm/runtime/lifecycle.py`) and by the role of their process, learner or
actor.

TensorFlow's threads in a learner compute everything there is: with --inference=learner, inference
and training cannot be separated and count together as the stage `network`. The stage
serialization is the two ends of the wire; encoding an unroll counts as Python in the actor,
decoding it as the learner's queue. Environments that Python steps count as Python, except Atari's.
"""

import contextlib
import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

STAGES = (
    *("environment", "inference", "serialization", "queue", "replay", "training", "network"),
    *("Python", "other"),
)
_WIRE_THREADS = (
    "grpc",
    "event_engine",
    "lifeguard",
    "timer_manager",
    "resource_quota",
    "default-execut",
)
_STAGE_BY_THREAD_NAME = {
    "environment": "environment",
    "link": "serialization",
    "prefetch": "queue",
    "replay-write": "replay",
    "replay-draw": "replay",
    "training": "training",
    "lockstep": "Python",
    "reports": "Python",
    "stepping": "Python",
    "playing": "Python",
}
_TENSORFLOW_THREADS = ("tf_intra", "tf_Compute", "tf_graph_runner")
_ACTOR_FLAG = "--job_name=actor"


class ProcessCpu(NamedTuple):
    """The CPU seconds of a process since its start."""

    role: str  # learner, actor, or actor's worker, which an actor started
    main_thread: int  # id of the thread that runs Python
    total_seconds: float  # all its threads, including those that have ended
    threads: dict[int, tuple[str, float]]  # running threads by id: name and seconds
    # Seconds in which a thread had work but no core; 0 if the kernel does not tell. Those of the
    # wire do not count, because they work beside the others.
    delay_seconds: float = 0.0


def snapshot(root: int, proc: Path = Path("/proc")) -> dict[int, ProcessCpu]:
    """Read the CPU seconds of a process and of all its descendants, by process id."""
    found: dict[int, ProcessCpu] = {}
    for process in process_tree(root, proc):
        try:
            words = (proc / str(process) / "cmdline").read_text().split("\0")
            process_stat = (proc / str(process) / "stat").read_text()
            total = _parse_cpu_seconds(process_stat)
            tasks = list((proc / str(process) / "task").iterdir())
        except OSError:  # the process exited while it was read
            continue
        threads, delay = {}, 0.0
        parent = found.get(int(_parse_fields(process_stat)[1]))
        belongs_to_actor = parent and parent.role != "learner"
        other_role = "actor's worker" if belongs_to_actor else "learner"
        role = "actor" if _ACTOR_FLAG in words else other_role
        for task in tasks:
            with contextlib.suppress(OSError):  # the thread ended, or the kernel has no schedstat
                stat = (task / "stat").read_text()
                name = _parse_name(stat)
                threads[int(task.name)] = name, _parse_cpu_seconds(stat)
                if stage_of_thread(role, name, int(task.name) == process) != "serialization":
                    delay += int((task / "schedstat").read_text().split()[1]) / 1e9
        found[process] = ProcessCpu(role, process, total, threads, delay)
    return found


def process_tree(root: int, proc: Path = Path("/proc")) -> list[int]:
    """List a process and all its descendants."""
    children = defaultdict(list)
    for stat in proc.glob("[0-9]*/stat"):
        try:
            children[int(_parse_fields(stat.read_text())[1])].append(int(stat.parent.name))
        except OSError:
            continue
    processes = [root]
    for process in processes:  # the list grows within the loop
        processes += children[process]
    return processes


def cpu_seconds_by_stage(
    before: dict[int, ProcessCpu], after: dict[int, ProcessCpu], place: str = "actor"
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the CPU seconds between two snapshots, by stage and by thread of the stage other.

    `place` is the place of inference.
    """
    by_stage: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    unknown: dict[str, float] = defaultdict(float)
    for process, cpu in after.items():
        previous = before.get(process, ProcessCpu(cpu.role, cpu.main_thread, 0.0, {}))
        counted = 0.0
        for thread, (name, seconds) in cpu.threads.items():
            taken = seconds - previous.threads.get(thread, ("", 0.0))[1]
            counted += taken
            thread_stage = stage_of_thread(cpu.role, name, thread == cpu.main_thread, place)
            by_stage[thread_stage] += taken
            if thread_stage == "other":
                unknown[f"{cpu.role}'s {name}"] += taken
        ended = max(cpu.total_seconds - previous.total_seconds - counted, 0.0)
        by_stage["other"] += ended
        unknown[f"{cpu.role}'s threads that ended"] += ended
    return by_stage, {name: seconds for name, seconds in unknown.items() if seconds > 0}


def cpu_seconds_by_role(
    before: dict[int, ProcessCpu], after: dict[int, ProcessCpu]
) -> dict[str, float]:
    """Return the CPU seconds between two snapshots, by role; and the actors' delay."""
    by_role = {"learner": 0.0, "actor": 0.0, "actor's delay": 0.0}
    for process, cpu in after.items():
        previous = before.get(process, ProcessCpu(cpu.role, cpu.main_thread, 0.0, {}))
        role = "learner" if cpu.role == "learner" else "actor"
        by_role[role] += cpu.total_seconds - previous.total_seconds
        if cpu.role == "actor":
            by_role["actor's delay"] += cpu.delay_seconds - previous.delay_seconds
    return by_role


def stage_of_thread(role: str, name: str, is_main_thread: bool, place: str = "actor") -> str:
    """Return the stage to which a thread's time belongs."""
    if name.startswith(_WIRE_THREADS):
        return "serialization"
    if name in _TENSORFLOW_THREADS:
        computes = "training" if place == "actor" else "network"
        return computes if role == "learner" else "inference"
    if is_main_thread:
        return "Python"
    return _STAGE_BY_THREAD_NAME.get(name, "other")


def machine_cpu_seconds(proc: Path = Path("/proc")) -> float:
    """Read the CPU seconds of all processes of this machine; 0 if the kernel hides them."""
    try:
        fields = (proc / "stat").read_text().split("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    idle = {3, 4}  # the columns of idle time and of waiting for disks
    busy = [int(value) for i, value in enumerate(fields) if i not in idle]
    return sum(busy) / os.sysconf("SC_CLK_TCK")


def parse_session_id(stat: str) -> int:
    """Parse the session id from the text of a process's /proc/ID/stat."""
    return int(_parse_fields(stat)[3])


def _parse_name(stat: str) -> str:
    return stat[stat.index("(") + 1 : stat.rindex(")")]


def _parse_fields(stat: str) -> list[str]:
    """Split the fields after the name: state, parent, group, session..."""
    return stat[stat.rindex(")") + 2 :].split()


def _parse_cpu_seconds(stat: str) -> float:
    user, system = _parse_fields(stat)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def session_cpu_seconds(leader: int, proc: Path = Path("/proc")) -> float:
    """Read the CPU seconds of all processes of a session, including their ended children."""
    total = 0.0
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if parse_session_id(text) == leader:
            total += sum(map(int, _parse_fields(text)[11:15]))
    return total / os.sysconf("SC_CLK_TCK")
