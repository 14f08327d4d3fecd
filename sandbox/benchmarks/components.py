"""The minimal cost of a step on this machine, part by part, in core-seconds and bytes.

    python sandbox/benchmarks/components.py [--save=FILE.json] [any flag of experiment.py]

Environment, inference and training are each measured alone. The cost of a part is its smallest CPU
time per step over batches of 8 to 256 (environments stepped at once, observations inferred at
once, unrolls trained on at once) and over 1 or 2 threads. All cores are busy during a measurement:
with 1 thread as many copies of the measuring process (`worker.py`) run side by side as there are
cores, with 2 threads half as many.

An emulator takes a fifth of a second to start. Environments and updates are therefore measured at
batches of 8, 16 and 32, and at a larger one only while the previous batch was more than 2% cheaper
than all smaller ones; the table names the batches that were not tried. When a
`ComponentBenchmark` measures again, it measures only each part's best batch and the neighbouring
batches, which are then already prepared.

Training computes in --precision. Inference computes in the acting precision
(`impala_mm/algorithms/agent.py`), which is --precision too, but float32 if the processor cannot
compute in bfloat16. `measure_wire` measures the cost of an unroll for its sender and its receiver,
and the cost of the parameters.

    limit = cores / (environment + inference + training)    steps per second, if nothing else ran

`throughput.py` compares real runs with this limit.
"""

import dataclasses
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from progress import ShowProgress, StatusLine, time_left
from worker_client import WorkerProcess, measure_both_ends, measure_concurrently, request_all

from impala_mm.config import command_line, flags
from impala_mm.config.flags import flag
from impala_mm.config.settings import Config
from impala_mm.runtime import provenance

PARTS = ("environment", "inference", "training")
BATCHES = (8, 16, 32, 64, 128, 256)
_MIN_BATCHES = {"environment": 3, "inference": 6, "training": 3}  # how many of BATCHES at least
# A larger batch is tried if the last one was cheaper than all smaller ones by more than this share.
_MIN_GAIN = 0.02
_USUAL_LARGEST_BATCH = 64  # the largest batch that is usually tried
# Seconds to start a process, an emulator, and to trace a TensorFlow function; only for estimates.
_START_SECONDS, _EMULATOR_SECONDS, _TRACE_SECONDS = 8.0, 0.15, 1.0
_MAX_STEPS_PER_UPDATE = 2560  # from about 600 steps per update on, the cost of a step is constant
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


class Measurement(NamedTuple):
    """The cost of one part at one batch size and number of threads."""

    part: str  # one of PARTS
    batch: int  # environments, observations or unrolls at once
    threads: int  # threads of each measuring process; together they keep all cores busy
    seconds: float  # core-seconds per step


class WireCosts(NamedTuple):
    """The bytes between an actor and its learner, and the CPU seconds that they cost either end."""

    unroll_bytes: float  # bytes of one unroll on the wire
    parameter_bytes: float  # bytes of the acting parameters on the wire
    pack: float  # actor, per unroll: cutting and encoding it
    send: float  # actor, per unroll: compressing and sending it, --num_envs per message
    receive: float  # learner, per unroll: receiving and decoding it, and adding it to a batch
    pull: float  # actor, per pull of the parameters: downloading them
    serve: float  # learner, per pull: answering it
    publish: float  # learner, per update: making the parameters available to actors


class ComponentCosts(NamedTuple):
    """All measured costs."""

    environment: float  # core-seconds per step, the smallest found
    inference: float
    training: float  # at --precision
    wire: WireCosts | None  # None if it was not measured
    measured: list[Measurement]  # all points
    host: dict[str, Any]  # cores, processor, cpu_flags, versions, revision
    settings: dict[str, Any]  # level_name, agent_name, precision, unroll_length

    @property
    def core_seconds_per_step(self) -> float:
        """The smallest number of core-seconds that a step takes."""
        return self.environment + self.inference + self.training

    @property
    def rate_limit(self) -> float:
        """Steps per second of this machine if it did nothing else."""
        return self.host["cores"] / self.core_seconds_per_step


def to_json(found: ComponentCosts) -> dict[str, Any]:
    """Return the costs as a dictionary for JSON, with a name for every figure."""
    wire = found.wire._asdict() if found.wire else None
    return found._asdict() | {"wire": wire, "measured": [m._asdict() for m in found.measured]}


class ComponentBenchmark:
    """The measuring processes; what they have prepared can be measured again."""

    def __init__(
        self, config: Config, seconds: float, show_progress: ShowProgress = lambda _: None
    ):
        """Start the processes; each point is measured for `seconds`.

        `show_progress` is called with a description of each point before it is measured.
        """
        self._config, self._seconds, self._show_progress = config, seconds, show_progress
        cores = len(os.sched_getaffinity(0))
        counts = {1: cores, 2: cores // 2} if cores > 1 else {1: 1}
        self._processes = {
            n: [WorkerProcess(config, n) for _ in range(c)] for n, c in counts.items()
        }
        # Earlier results: core-seconds per step by (part, threads) and batch.
        self._costs_before: dict[tuple[str, int], dict[int, float]] = {}
        self._precision: dict[str, str] = {}  # the precision in which each part computes
        # Guesses at the seconds of points that are not measured yet, and of all that is done.
        self._left: dict[tuple[str, int, int], float] = {}
        self._done, self._began = 0.0, 0.0

    def __enter__(self) -> "ComponentBenchmark":
        return self

    def __exit__(self, *_: object) -> None:
        for process in itertools.chain(*self._processes.values()):
            process.kill()

    def measure(self, wire: WireCosts | None = None) -> ComponentCosts:
        """Measure each part at growing batches; after the first time, only around the best."""
        combinations = list(itertools.product(PARTS, self._processes))
        self._done, self._began = 0.0, time.monotonic()
        self._left = {
            (*k, batch): self._estimate_seconds(*k, batch)
            for k in combinations
            for batch in self._expected_batches(*k)
        }
        if not self._costs_before:
            self._show("starting measuring processes", _START_SECONDS)
            request_all([*itertools.chain(*self._processes.values())])
            self._done = _START_SECONDS
        measured: list[Measurement] = []
        for part, threads in combinations:
            measure_batch = functools.partial(self._measure_point, part, threads)
            if found_before := self._costs_before.get((part, threads)):
                costs = {batch: measure_batch(batch) for batch in best_and_neighbours(found_before)}
            else:
                costs = measure_growing_batches(
                    candidate_batches(part, self._config), _MIN_BATCHES[part], measure_batch
                )
                run_batch = self._config.batch_size
                if part == "training" and run_batch not in costs:
                    costs[run_batch] = measure_batch(run_batch)
                self._costs_before[part, threads] = costs
            # Some of the batches that were expected may not have been needed.
            self._left = {k: left for k, left in self._left.items() if k[:2] != (part, threads)}
            measured += [Measurement(part, batch, threads, cost) for batch, cost in costs.items()]
        best = {part: min(m.seconds for m in measured if m.part == part) for part in PARTS}
        settings = {name: getattr(self._config, name) for name in _SETTING_NAMES}
        settings["precision"] = self._precision.get("training", self._config.precision)
        settings["acting_precision"] = self._precision.get("inference", "")
        return ComponentCosts(
            **best, wire=wire, measured=measured, host=describe_host(), settings=settings
        )

    def _show(self, text: str, seconds: float = 0.0) -> None:
        """Show what is measured and the time left; `seconds`: of what is not in `_left`."""
        left = sum(self._left.values()) + seconds
        self._show_progress(f"{text}; {time_left(self._began, self._done, left)}")

    def _measure_point(self, part: str, threads: int, batch: int) -> float:
        """Return the core-seconds per step while all cores run the same task."""
        guess = self._estimate_seconds(part, threads, batch)
        self._show(f"{part}, {batch} at once, {threads} thread{'s' * (threads > 1)}")
        processes = self._processes[threads]
        answer = request_all(processes, prepare=part, batch=batch)[0]
        if "precision" in answer:
            self._precision[part] = answer["precision"]
        cost = measure_concurrently(processes, self._seconds, part, batch)
        self._left.pop((part, threads, batch), None)  # it may be a new one
        self._done += guess
        return cost

    def _expected_batches(self, part: str, threads: int) -> list[int]:
        """Return the batches at which a part will probably be measured next."""
        if found_before := self._costs_before.get((part, threads)):
            return best_and_neighbours(found_before)
        candidates = candidate_batches(part, self._config)
        return [
            b
            for i, b in enumerate(candidates)
            if i < _MIN_BATCHES[part] or b <= _USUAL_LARGEST_BATCH
        ]

    def _estimate_seconds(self, part: str, threads: int, batch: int) -> float:
        """Estimate the seconds that a measurement takes."""
        if batch in self._costs_before.get((part, threads), {}):
            return self._seconds
        starts = batch * _EMULATOR_SECONDS if part == "environment" else _TRACE_SECONDS
        return starts + self._seconds


def measure_wire(
    config: Config, seconds: float = 1.0, show_progress: ShowProgress = lambda _: None
) -> WireCosts:
    """Measure each cost of the wire for `seconds`."""
    show_progress("the wire, then the other parts")
    envs = config.num_envs
    learner, actor = WorkerProcess(config, 1), WorkerProcess(config, 1)

    try:
        published = learner.request(prepare="publish_parameters", batch=1)
        answer = learner.request(measure_seconds=seconds, task="publish_parameters", batch=1)
        publish = answer["cpu"] / answer["steps"]
        address = learner.request(prepare="receive_unrolls", batch=envs)["address"]
        actor.request(prepare="cut_unrolls", batch=envs)
        pack, _ = measure_both_ends(learner, actor, seconds, "cut_unrolls", envs)
        sent = actor.request(prepare="send_unrolls", batch=envs, address=address)
        send, receive = measure_both_ends(learner, actor, seconds, "send_unrolls", envs)
        actor.request(prepare="pull_parameters", batch=1, address=address)
        pull, serve = measure_both_ends(learner, actor, seconds, "pull_parameters", 1)
    finally:
        learner.kill()
        actor.kill()
    size, parameters = sent["unroll_bytes"], published["parameter_bytes"]
    return WireCosts(size, parameters, pack, send, receive, pull, serve, publish)


def measure_growing_batches(
    candidates: list[int], min_batches: int, measure: Callable[[int], float]
) -> dict[int, float]:
    """Measure the first `min_batches` >= 2, and larger batches while they are cheaper."""
    costs: dict[int, float] = {}
    for batch in candidates:
        if len(costs) >= min_batches:
            *before, last = costs.values()
            if last > (1 - _MIN_GAIN) * min(before):
                break
        costs[batch] = measure(batch)
    return costs


def best_and_neighbours(costs: dict[int, float]) -> list[int]:
    """Return the batch with the smallest cost and its neighbours."""
    batches = sorted(costs)
    best = batches.index(min(batches, key=costs.__getitem__))
    return batches[max(best - 1, 0) : best + 2]


def measure_components(
    config: Config, seconds: float = 1.0, show_progress: ShowProgress = lambda _: None
) -> ComponentCosts:
    """Measure each part and the wire once."""
    wire = measure_wire(config, seconds, show_progress)
    with ComponentBenchmark(config, seconds, show_progress) as benchmark:
        return benchmark.measure(wire)


_SETTING_NAMES = tuple(
    "level_name agent_name precision unroll_length batch_size num_envs compression".split()
)


def refuse_auto(config: Config) -> None:
    """Refuse --num_envs=auto: nothing is known here of the run whose parts are measured."""
    if config.num_envs == flags.AUTO:
        flags.refuse(
            "--num_envs=auto: give a number; auto means 32 for image observations, else 16"
        )


def candidate_batches(part: str, config: Config) -> list[int]:
    """Return the batches that may be tried besides the run's own --batch_size.

    An algorithm of rounds trains at no other: its minibatches are parts of a round. Neither does
    one with a replay of its own, whose number of optimizer steps follows --batch_size.
    """
    if part == "training" and (config.rounds or config.own_replay):
        return []
    longest = _MAX_STEPS_PER_UPDATE // config.unroll_length if part == "training" else BATCHES[-1]
    return [batch for batch in BATCHES if batch <= longest]


def describe_host() -> dict[str, Any]:
    """Return this machine's processor, and the versions and revision in use."""
    known = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": provenance.machine(),
        "cpu_flags": [name for name in _CPU_FLAGS if name in known],
        "versions": provenance.versions(),
        "revision": provenance.revision(),
    }


def format_table(found: ComponentCosts) -> str:
    """Return the costs as a table for people."""
    lines = [f"{found.host['processor']}; {' '.join(found.host['cpu_flags'])}"]
    lines += ["core-microseconds per step, by batch (t: threads)"]
    for part in PARTS:
        here = [m for m in found.measured if m.part == part]
        best = min(here, key=lambda m: m.seconds)
        points = ", ".join(f"{m.batch}/{m.threads}t {m.seconds * 1e6:.0f}" for m in here)
        lines.append(f"  {part:12} {best.seconds * 1e6:7.1f}   the smallest of {points}")
    if left_out := _describe_untried(found):
        lines.append(f"  not tried: {left_out}")
    cores = found.host["cores"]
    lines.append(
        f"  together     {found.core_seconds_per_step * 1e6:7.1f}: {found.rate_limit:,.0f} steps/s "
        f"on {cores} cores"
    )
    if wire := found.wire:
        lines += [
            f"an unroll: {wire.unroll_bytes:,.0f} bytes; microseconds: pack {1e6 * wire.pack:.0f}, "
            f"send {1e6 * wire.send:.0f}, receive {1e6 * wire.receive:.0f}",
            f"parameters: {wire.parameter_bytes:,.0f} bytes; microseconds: publish "
            f"{1e6 * wire.publish:.0f}, pull {1e6 * wire.pull:.0f}, serve {1e6 * wire.serve:.0f}",
        ]
    return "\n".join(lines)


def _describe_untried(found: ComponentCosts) -> str:
    """Describe which batches were not tried, and why."""
    untried = []
    for part in PARTS:
        here = {(m.threads, m.batch) for m in found.measured if m.part == part}
        firsts = []
        for threads in sorted({threads for threads, _ in here}):
            out = [batch for batch in BATCHES if (threads, batch) not in here]
            firsts += [f"{out[0]}/{threads}t"] if out else []
        if firsts:
            untried.append(f"{part} from {' and '.join(firsts)} on")
    if not untried:
        return ""
    return (
        f"{', '.join(untried)}: the previous batch was not {_MIN_GAIN:.0%} cheaper than all "
        f"smaller ones, or the update has more than {_MAX_STEPS_PER_UPDATE:,} steps"
    )


@dataclasses.dataclass(frozen=True)
class ComponentFlags:
    """Flags of this program in addition to those of experiment.py."""

    save: str = flag("", group="Components", text="File to write all figures to, as JSON.")
    measured_seconds: float = flag(
        1.0, group="Components", least=0.01, text="Seconds for which each point is measured."
    )


def main() -> None:
    """Measure the components and print them."""
    (config, component_flags), _ = command_line.parse(
        sys.argv, __doc__ or "", Config, ComponentFlags
    )
    refuse_auto(config)
    status_line = StatusLine("components")
    found = measure_components(config, component_flags.measured_seconds, status_line)
    status_line.clear()
    print(format_table(found))
    if component_flags.save:
        Path(component_flags.save).write_text(json.dumps(to_json(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
