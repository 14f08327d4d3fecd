"""--hosts_from=environment: the rows of the CSV from what a launcher of machines tells each one.

The launcher runs the same command on every machine. On the first one the command is an ordinary
frontend, which reaches the others over SSH; on the others it does nothing, or waits.

    first machine     a learner for each GPU, else one; an actor for each core that these leave
    other machines    an actor for each core
"""

import dataclasses
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from launcher.plan.workers_csv import MOST_GPUS, BadCsv, Worker, address_mistake

_LEARNER_CORES = 4  # of the first machine that are left to each learner


class Engine(NamedTuple):
    """A launcher of machines, and the variables of its processes."""

    name: str
    nodes: str  # the addresses of all machines, the first one first
    rank: str  # the number of this one
    gpus: str  # of the first one
    ends_machines: bool = False  # whether a machine's end is the end of its command


ENGINES = (
    Engine("SkyPilot", "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_GPUS_PER_NODE"),
    Engine(
        "dstack", "DSTACK_NODES_IPS", "DSTACK_NODE_RANK", "DSTACK_GPUS_PER_NODE", ends_machines=True
    ),
    Engine("Slurm", "SLURM_NODELIST", "SLURM_PROCID", "SLURM_GPUS_ON_NODE"),
)
_SLURM_CORES = "SLURM_JOB_CPUS_PER_NODE"


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of this machine; 0: it starts the run. Raises BadCsv."""
    engine = _engine(environment)
    found = _number(engine.rank, environment)
    # Slurm's is the number of a task, of which a node may have several.
    if engine.name != "Slurm" and found >= (count := len(environment[engine.nodes].split())) > 0:
        raise BadCsv(f"{engine.rank}={found}, but {engine.nodes} names {count}, from number 0")
    return found


def wait_for_the_first() -> None:
    """Print what the first machine does; return, or wait for SIGTERM if this one would end."""
    engine, does = _engine(os.environ), "starts this machine's processes, over SSH"
    if not engine.ends_machines:
        print(f"machine {rank()}: machine 0 {does}; nothing is to be done here")
        return
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    print(f"machine {rank()}: machine 0 {does}; waits for {engine.name} to end this one")
    signal.sigwait(signals)


def rows(environment: Mapping[str, str] = os.environ) -> list[Worker]:
    """Return the rows of the machines that the environment names. Raises BadCsv."""
    engine = _engine(environment)
    nodes = environment[engine.nodes].split()
    if engine.name == "Slurm":
        nodes = _slurm_nodes(environment[engine.nodes])
    if not nodes:
        raise BadCsv(f"{engine.nodes} is empty: it must name the machines")
    if wrong := next(filter(None, map(address_mistake, nodes)), ""):
        raise BadCsv(f"{engine.nodes}: {wrong}")
    gpus = _number(engine.gpus, environment) if environment.get(engine.gpus) else 0
    cores = [len(os.sched_getaffinity(0))] * len(nodes)  # they are taken to be alike
    if environment.get(_SLURM_CORES) and engine.name == "Slurm":
        cores = list(_slurm_cores(environment[_SLURM_CORES]))
    if gpus > MOST_GPUS:
        raise BadCsv(f"{engine.gpus}={gpus}: a machine has at most {MOST_GPUS} GPUs")
    if len(cores) < len(nodes):
        raise BadCsv(
            f"{_SLURM_CORES}={environment[_SLURM_CORES]} has {len(cores)} nodes, but "
            f"{engine.nodes} has {len(nodes)}"
        )
    devices = [str(gpu) for gpu in range(gpus)] or [""]
    found = [Worker(0, "learner", nodes[0], cuda_visible_devices=each) for each in devices]
    counts = [cores[0] - _LEARNER_CORES * len(devices), *cores[1:]]
    if len(nodes) == 1:
        counts[0] = max(1, counts[0])
    found += [
        Worker(0, "actor", node, count=count)
        for node, count in zip(nodes, counts, strict=False)
        if count > 0
    ]
    return [dataclasses.replace(row, line=line) for line, row in enumerate(found, 2)]


def describe(found: list[Worker]) -> str:
    """Return rows as the text of a CSV, to which a user can add columns."""
    lines = [f"{row.job},{row.ip},{row.cuda_visible_devices},{row.count}" for row in found]
    return "\n".join(["job,ip,cuda_visible_devices,count", *lines])


def _engine(environment: Mapping[str, str]) -> Engine:
    """Return the launcher that has started this process. Raises BadCsv."""
    for engine in ENGINES:
        if engine.nodes in environment:
            if engine.rank not in environment:
                raise BadCsv(
                    f"{engine.nodes} is set, but {engine.rank} is not: {engine.name} sets both "
                    f"for the processes that it starts"
                )
            return engine
    names = ", ".join(f"{engine.nodes} ({engine.name})" for engine in ENGINES)
    raise BadCsv(f"no variable names the machines: {names}; elsewhere write a CSV")


def _number(name: str, environment: Mapping[str, str]) -> int:
    if not environment[name].isdecimal():
        raise BadCsv(f"{name}={environment[name]} is not a whole number")
    return int(environment[name])


def _slurm_nodes(text: str) -> list[str]:
    """Return the names in a list of Slurm's, such as a[01-03,7],b."""
    try:
        asked = subprocess.run(
            ["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=True
        )
        return asked.stdout.split()
    except (OSError, subprocess.CalledProcessError):  # as in a container, which has no Slurm
        found = list(_expand(text))
    if wrong := [name for name in found if re.search(r"[][,\s]", name)]:
        raise BadCsv(f"SLURM_NODELIST={text} is no list of nodes: {wrong[0]}")
    return found


def _expand(text: str) -> Iterator[str]:
    for part in re.findall(r"(?:\[[^]]*\]|[^,])+", text):
        bracket = re.fullmatch(r"([^[]*)\[([\d,-]+)\](.*)", part)
        if not bracket:
            yield part
            continue
        before, numbers, after = bracket.groups()
        for low, high in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            for number in range(int(low), int(high or low) + 1):
                for rest in _expand(after) if after else [""]:
                    yield f"{before}{number:0{len(low)}d}{rest}"


def _slurm_cores(text: str) -> Iterator[int]:
    """Yield the cores of each node from a text of Slurm's, such as 72(x2),36."""
    for cores, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(cores)] * int(times or 1)
