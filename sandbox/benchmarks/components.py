"""What a step costs at least, part by part, on this machine: in core-seconds, and bytes.

    python sandbox/benchmarks/components.py [--save=FILE.json] [any flag of experiment.py]

Environment, inference and training are each measured alone: the smallest CPU time per step over
batches (environments stepped at once, observations inferred at once, unrolls trained on at once) of
8 to 256 and 1 or 2 threads. All cores are busy meanwhile: with 1 thread as many copies of the
measuring process (`worker.py`) work side by side as there are cores, with 2 threads half as many.

An emulator takes a fifth of a second to start. So environments and updates are measured at batches
of 8, 16 and 32, and at a larger one only while the one before was more than 2% cheaper than all
before it; the table says which were not tried. A `Bench` that measures again does so at each part's
best batch and the ones beside it, which are ready by then.

Training computes in --precision, inference as who acts does (`agreement.acting`: in --precision,
too, but in float32 where the processor does not compute in bfloat16). `wire.py` measures what an
unroll costs who sends and who receives it, and the parameters.

    limit = cores / (environment + inference + training)    steps per second, were nothing else

`throughput.py` holds real runs against that limit.
"""

import dataclasses
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import wire_costs as wires
from progress import Ahead, Hint
from wire_costs import Wire
from worker_client import Process, crowded, together

from impala_mm.config import flags
from impala_mm.config.flags import flag
from impala_mm.config.settings import Config
from impala_mm.runtime import provenance

PARTS = ("environment", "inference", "training")
BATCHES = (8, 16, 32, 64, 128, 256)
_ALWAYS = {"environment": 3, "inference": 6, "training": 3}  # of BATCHES, the smallest first
_PAYS = 0.02  # by which a batch must be cheaper than all smaller ones for a larger one to be tried
_LIKELY = 64  # up to which batch that usually comes to
# Seconds to start a process, an emulator, and a TensorFlow function; for guesses alone.
_LOAD, _EMULATOR, _TRACE = 8.0, 0.15, 1.0
_MOST_TRAINED = 2560  # steps in one update: from some 600 on a step costs the same
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
Say = Callable[[str], None]


class Measured(NamedTuple):
    """One part, at one batch and number of threads."""

    part: str  # of PARTS
    batch: int  # environments, observations or unrolls at once
    threads: int  # of each measuring process; all of them together keep the cores busy
    seconds: float  # of one core's CPU time, per step


class Components(NamedTuple):
    """All that was measured; travels as JSON (`to_json`, `from_json`)."""

    environment: float  # core-seconds per step, the smallest found
    inference: float
    training: float  # at --precision
    wire: Wire | None  # None where it was not asked for
    measured: list[Measured]  # every point
    host: dict[str, Any]  # cores, processor, cpu_flags, versions, revision
    settings: dict[str, Any]  # level_name, agent_name, precision, unroll_length

    @property
    def total(self) -> float:
        """Core-seconds that a step takes at least."""
        return self.environment + self.inference + self.training

    @property
    def limit(self) -> float:
        """Steps per second of this machine, were there nothing else to do."""
        return self.host["cores"] / self.total


def to_json(found: Components) -> dict[str, Any]:
    """With names for everything."""
    wire = found.wire._asdict() if found.wire else None
    return found._asdict() | {"wire": wire, "measured": [m._asdict() for m in found.measured]}


def from_json(held: dict[str, Any]) -> Components:
    """What `to_json` made, also of another machine."""
    wire = Wire(**held["wire"]) if held["wire"] else None
    return Components(
        **held | {"wire": wire, "measured": [Measured(**m) for m in held["measured"]]}
    )


class Bench:
    """The measuring processes: what was made ready stays so, and can be measured again."""

    def __init__(self, config: Config, seconds: float, say: Say = lambda _: None):
        """Each point is measured for so many seconds; `say` hears what comes next."""
        self._config, self._seconds, self._say = config, seconds, say
        cores = len(os.sched_getaffinity(0))
        counts = {1: cores, 2: cores // 2} if cores > 1 else {1: 1}
        self._processes = {n: [Process(config, n) for _ in range(c)] for n, c in counts.items()}
        self._first: dict[tuple[str, int], dict[int, float]] = {}  # by part and threads, by batch
        self._precision: dict[str, str] = {}  # that a part computes in

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        for process in itertools.chain(*self._processes.values()):
            process.end()

    def measure(self, wire: Wire | None = None) -> Components:
        """Each part at batch after batch; from the second time on, at the best and beside it."""
        kinds = list(itertools.product(PARTS, self._processes))
        likely = {(*k, batch): self._guess(*k, batch) for k in kinds for batch in self._likely(*k)}
        ahead = Ahead(likely | {"start": 0.0 if self._first else _LOAD})
        if not self._first:
            self._say(f"measuring processes start; {ahead.left()}")
            together([*itertools.chain(*self._processes.values())])
            ahead.done("start", _LOAD)
        found: list[Measured] = []
        for part, threads in kinds:
            at = functools.partial(self._point, ahead, part, threads)
            if first := self._first.get((part, threads)):
                costs = {batch: at(batch) for batch in near(first)}
            else:
                costs = climb(batches(part, self._config), _ALWAYS[part], at)
                own = self._config.batch_size
                if part == "training" and own not in costs:
                    costs[own] = at(own)
                self._first[part, threads] = costs
            for name in likely:
                if name[:2] == (part, threads):
                    ahead.drop(name)
            found += [Measured(part, batch, threads, cost) for batch, cost in costs.items()]
        best = {part: min(m.seconds for m in found if m.part == part) for part in PARTS}
        settings = {name: getattr(self._config, name) for name in _SETTINGS}
        settings["precision"] = self._precision.get("training", self._config.precision)
        settings["acting_precision"] = self._precision.get("inference", "")
        return Components(**best, wire=wire, measured=found, host=host(), settings=settings)

    def _point(self, ahead: Ahead, part: str, threads: int, batch: int) -> float:
        """Core-seconds per step, where all cores do the same."""
        guess, s = self._guess(part, threads, batch), "s" * (threads > 1)
        self._say(f"{part}, {batch} at once, {threads} thread{s}; {ahead.left()}")
        processes = self._processes[threads]
        told = together(processes, prepare=part, batch=batch)[0]
        if "precision" in told:
            self._precision[part] = told["precision"]
        cost = crowded(processes, self._seconds, part, batch)
        ahead.done((part, threads, batch), guess)
        return cost

    def _likely(self, part: str, threads: int) -> list[int]:
        """At which batches it will be measured next."""
        if first := self._first.get((part, threads)):
            return near(first)
        every = batches(part, self._config)
        return [b for i, b in enumerate(every) if i < _ALWAYS[part] or b <= _LIKELY]

    def _guess(self, part: str, threads: int, batch: int) -> float:
        """Seconds that a point takes."""
        if batch in self._first.get((part, threads), {}):
            return self._seconds
        starts = batch * _EMULATOR if part == "environment" else _TRACE
        return starts + self._seconds


def climb(tried: list[int], always: int, at: Callable[[int], float]) -> dict[int, float]:
    """What `at` says of the batches `tried`: of `always` >= 2, and then while a larger one paid."""
    found: dict[int, float] = {}
    for batch in tried:
        if len(found) >= always:
            *before, last = found.values()
            if last > (1 - _PAYS) * min(before):
                break
        found[batch] = at(batch)
    return found


def near(found: dict[int, float]) -> list[int]:
    """The batch that costs least, and those beside it."""
    tried = sorted(found)
    best = tried.index(min(tried, key=found.__getitem__))
    return tried[max(best - 1, 0) : best + 2]


def measure(config: Config, seconds: float = 1.0, say: Say = lambda _: None) -> Components:
    """Each part, and the wire, once."""
    wire = wires.measure(config, seconds, say)
    with Bench(config, seconds, say) as bench:
        return bench.measure(wire)


_SETTINGS = tuple(
    "level_name agent_name precision unroll_length batch_size num_envs compression".split()
)


def batches(part: str, config: Config) -> list[int]:
    """Those that may be tried, besides the run's own --batch_size."""
    longest = _MOST_TRAINED // config.unroll_length if part == "training" else BATCHES[-1]
    return [batch for batch in BATCHES if batch <= longest]


def host() -> dict[str, Any]:
    """What it was measured on."""
    known = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": provenance.machine(),
        "cpu_flags": [name for name in _FLAGS if name in known],
        "versions": provenance.versions(),
        "revision": provenance.revision(),
    }


def table(found: Components) -> str:
    """For people."""
    lines = [f"{found.host['processor']}; {' '.join(found.host['cpu_flags'])}"]
    lines += ["core-microseconds per step, by how many at once (t: threads)"]
    for part in PARTS:
        here = [m for m in found.measured if m.part == part]
        best = min(here, key=lambda m: m.seconds)
        points = ", ".join(f"{m.batch}/{m.threads}t {m.seconds * 1e6:.0f}" for m in here)
        lines.append(f"  {part:12} {best.seconds * 1e6:7.1f}   of {points}")
    if left_out := _left_out(found):
        lines.append(f"  not tried: {left_out}")
    cores = found.host["cores"]
    lines.append(
        f"  together     {found.total * 1e6:7.1f}: {found.limit:,.0f} steps/s on {cores} cores"
    )
    if wire := found.wire:
        lines += [
            f"an unroll: {wire.unroll_bytes:,.0f} bytes; microseconds: pack {1e6 * wire.pack:.0f}, "
            f"send {1e6 * wire.send:.0f}, receive {1e6 * wire.receive:.0f}",
            f"parameters: {wire.parameter_bytes:,.0f} bytes; microseconds: publish "
            f"{1e6 * wire.publish:.0f}, pull {1e6 * wire.pull:.0f}, serve {1e6 * wire.serve:.0f}",
        ]
    return "\n".join(lines)


def _left_out(found: Components) -> str:
    """Batches, and why."""
    said = []
    for part in PARTS:
        here = {(m.threads, m.batch) for m in found.measured if m.part == part}
        firsts = []
        for threads in sorted({threads for threads, _ in here}):
            out = [batch for batch in BATCHES if (threads, batch) not in here]
            firsts += [f"{out[0]}/{threads}t"] if out else []
        if firsts:
            said.append(f"{part} from {' and '.join(firsts)} on")
    if not said:
        return ""
    return (
        f"{', '.join(said)}: the batch before was not {_PAYS:.0%} cheaper than all smaller ones, "
        f"or it is an update of more than {_MOST_TRAINED:,} steps"
    )


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Flags of this program besides those of experiment.py."""

    save: str = flag("", group="Components", text="File for all figures, as JSON.")
    measured_seconds: float = flag(
        1.0, group="Components", least=0.01, text="Seconds for which each point is measured."
    )


def main() -> None:
    """Measures and prints."""
    (config, ours), _ = flags.parse(sys.argv, __doc__ or "", Config, Measuring)
    hint = Hint("components")
    found = measure(config, ours.measured_seconds, hint)
    hint.end()
    print(table(found))
    if ours.save:
        Path(ours.save).write_text(json.dumps(to_json(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
