"""What a step costs at least, part by part, on this machine: in core-seconds, and bytes.

    python sandbox/benchmarks/components.py [--save=FILE.json] [any flag of experiment.py]

Environment, inference and training are each measured alone: the smallest CPU time per step over
batches (environments stepped at once, observations inferred at once, unrolls trained on at once) of
8 to 256 and 1 or 2 threads. All cores are busy meanwhile: with 1 thread as many copies of the
measuring process (`parts.py`) work side by side as there are cores, with 2 threads half as many.
Training is measured in --precision, inference in float32, as actors do it. The wire's two ends are
processes of their own: what an unroll costs who sends and who receives it, and the parameters.

    limit = cores / (environment + inference + training)    steps per second, were nothing else

`throughput.py` holds real runs against that limit.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm import flags, provenance
from impala_mm.config import Config
from impala_mm.flags import flag

HERE = Path(__file__).resolve().parent
PARTS = ("environment", "inference", "training")
BATCHES = (8, 16, 32, 64, 128, 256)
_MOST_TRAINED = 2560  # steps in one update: from some 600 on a step costs the same
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
Say = Callable[[str], None]


class Measured(NamedTuple):
    """One part, at one batch and number of threads."""

    part: str  # of PARTS
    batch: int  # environments, observations or unrolls at once
    threads: int  # of each measuring process; all of them together keep the cores busy
    seconds: float  # of one core's CPU time, per step


class Wire(NamedTuple):
    """What travels between an actor and its learner, and what that costs either. CPU seconds."""

    unroll_bytes: float  # of one unroll, as it is sent
    parameter_bytes: float  # of the acting parameters, as they are sent
    pack: float  # of the actor, per unroll: cutting and encoding it
    send: float  # of the actor, per unroll: compressing and sending it, --num_envs in a message
    receive: float  # of the learner, per unroll: taking it in, unpacked, and into a batch
    pull: float  # of the actor, per pull of parameters: fetching and loading them
    serve: float  # of the learner, per pull: answering it
    publish: float  # of the learner, per update: making the parameters what actors get


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
    """The measuring processes: what was made ready stays so, and can be measured again.

    Emulators take a fifth of a second each to start: the first time takes minutes.
    """

    def __init__(self, config: Config, seconds: float, say: Say = lambda _: None):
        """Each point is measured for so many seconds; `say` hears what comes next."""
        self._config, self._seconds, self._say = config, seconds, say
        cores = len(os.sched_getaffinity(0))
        counts = {1: cores, 2: cores // 2} if cores > 1 else {1: 1}
        self._processes = {n: [Process(config, n) for _ in range(c)] for n, c in counts.items()}

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        for process in itertools.chain(*self._processes.values()):
            process.end()

    def measure(self, wire: Wire | None = None) -> Components:
        """Every point, one after the other."""
        found: list[Measured] = []
        for threads, processes in self._processes.items():
            for part in PARTS:
                for batch in _batches(part, self._config):
                    self._say(f"{part}, {batch} at once, {threads} thread{'s' * (threads > 1)}")
                    together(processes, prepare=part, batch=batch)
                    answers = together(processes, go=self._seconds, part=part, batch=batch)
                    cpu = sum(a["cpu"] for a in answers) / sum(a["steps"] for a in answers)
                    found.append(Measured(part, batch, threads, cpu))
        best = {part: min(m.seconds for m in found if m.part == part) for part in PARTS}
        settings = {name: getattr(self._config, name) for name in _SETTINGS}
        return Components(**best, wire=wire, measured=found, host=host(), settings=settings)


def measure(config: Config, seconds: float = 1.0, say: Say = lambda _: None) -> Components:
    """Each part, and the wire, once."""
    wire = measure_wire(config, seconds, say)
    with Bench(config, seconds, say) as bench:
        return bench.measure(wire)


_SETTINGS = tuple(
    "level_name agent_name precision unroll_length batch_size num_envs compression".split()
)


def _batches(part: str, config: Config) -> list[int]:
    """Those that are tried; of training, as the run itself does it, too."""
    if part != "training":
        return list(BATCHES)
    fit = {batch for batch in BATCHES if batch * config.unroll_length <= _MOST_TRAINED}
    return sorted(fit | {config.batch_size})


def measure_wire(config: Config, seconds: float = 1.0, say: Say = lambda _: None) -> Wire:
    """Both ends, one thread each."""
    say("the wire")
    envs = config.num_envs
    learner, actor = Process(config, 1), Process(config, 1)

    def both(part: str, batch: int) -> tuple[float, float]:
        """CPU seconds each time that the actor does this part: (its own, the learner's)."""
        before = learner.ask()["cpu"]
        answer = actor.ask(go=seconds, part=part, batch=batch)
        cpu, times = answer["cpu"], answer["steps"]
        return cpu / times, (learner.ask()["cpu"] - before) / times

    try:
        made = learner.ask(prepare="publishing", batch=1)
        answer = learner.ask(go=seconds, part="publishing", batch=1)
        publish = answer["cpu"] / answer["steps"]
        address = learner.ask(prepare="serve", batch=envs)["address"]
        actor.ask(prepare="packing", batch=envs)
        pack, _ = both("packing", envs)
        sent = actor.ask(prepare="send", batch=envs, address=address)
        send, receive = both("send", envs)
        actor.ask(prepare="pull", batch=1, address=address)
        pull, serve = both("pull", 1)
    finally:
        learner.end()
        actor.end()
    size, parameters = sent["unroll_bytes"], made["parameter_bytes"]
    return Wire(size, parameters, pack, send, receive, pull, serve, publish)


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


class Process:
    """A measuring process."""

    def __init__(self, config: Config, threads: int, gpus: bool = True):
        """It sees the GPUs that this process sees, if any, or none."""
        given = [
            f"--{f.name}={getattr(config, f.name)}"
            for f in dataclasses.fields(config)
            if getattr(config, f.name) != f.default
        ]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "parts.py"), str(threads), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            start_new_session=True,  # Ctrl-C is for who measures
        )

    def ask(self, **what: Any) -> dict[str, Any]:
        """Its answer."""
        self.tell(**what)
        return self.hear()

    def tell(self, **what: Any) -> None:
        """Asks, and waits for no answer yet."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # `hear` says so
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The answer to what it was told."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"error: a measuring process ended with code {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.wait()


def together(processes: list[Process], **what: Any) -> list[dict[str, Any]]:
    """What they answer who do the same at the same time."""
    for process in processes:
        process.tell(**what)
    return [process.hear() for process in processes]


def table(found: Components) -> str:
    """For people."""
    lines = [f"{found.host['processor']}; {' '.join(found.host['cpu_flags'])}"]
    lines += ["core-microseconds per step, by how many at once (t: threads)"]
    for part in PARTS:
        here = [m for m in found.measured if m.part == part]
        best = min(here, key=lambda m: m.seconds)
        points = ", ".join(f"{m.batch}/{m.threads}t {m.seconds * 1e6:.0f}" for m in here)
        lines.append(f"  {part:12} {best.seconds * 1e6:7.1f}   of {points}")
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
    found = measure(config, ours.measured_seconds, say=lambda text: print(f"  {text}", flush=True))
    print(table(found))
    if ours.save:
        Path(ours.save).write_text(json.dumps(to_json(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
