"""The cores, memory and GPUs that learners and actors use on each host: rows of hosts.jsonl.

A learner knows the use of its own process, that of its actors by their messages, and its host's
GPUs. Reports bring all of it to rank 0.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from impala_mm.runtime.machine import GpuUse

FILE = "hosts.jsonl"  # in the run's folder
_MOST_HOSTS = 32  # that have values of their own
OTHER_HOSTS = "other hosts"


class HostUse(NamedTuple):
    """The use of a host by some processes of the run."""

    host: str
    cores: float
    memory: float  # MiB
    gpus: Sequence[GpuUse] = ()  # of the host, whoever uses them


class HostRows:
    """The rows of one run."""

    def __init__(self) -> None:
        self._named: list[str] = []  # hosts that have values of their own

    def make(self, parts: Sequence[HostUse]) -> dict[str, float]:
        """Return the sums of all parts, by the keys of a row.

        These are `cores/HOST` and `memory/HOST`, and for each GPU that nvidia-smi measures
        `gpu/HOST/NUMBER`, the percentage of time in which it is busy, and `gpu_memory/HOST/NUMBER`.
        Memory is in MiB. Of too many hosts, those that come first have their own values.
        """
        present = dict.fromkeys(part.host for part in parts)
        kept = [host for host in self._named if host in present]
        self._named = list(dict.fromkeys([*kept, *present]))[:_MOST_HOSTS]
        row = defaultdict[str, float](float)
        for part in parts:
            name = part.host if part.host in self._named else OTHER_HOSTS
            row[f"cores/{name}"] += part.cores
            row[f"memory/{name}"] += part.memory
            for gpu in part.gpus:
                for key, text in (("gpu", gpu.used), ("gpu_memory", gpu.memory)):
                    if text.isdecimal():
                        row[f"{key}/{part.host}/{gpu.number}"] = float(text)
        return {key: round(value, 2) for key, value in row.items()}
