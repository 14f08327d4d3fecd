"""What a step costs on this kind of host, at a run's own shape; `plan.py` predicts runs from it.

`components.py` looks for the batch at which each part is cheapest. Here each part is measured as
the flags will have it: --num_envs environments at once, updates of --batch_size unrolls, Python
between them included. Its measuring processes (`worker.py`) do it: what an actor's one thread does,
as many do side by side as there are cores; an update is made alone, with the threads of a learner.
How much dearer both are beside each other is measured then, and the wire about as often as a run
uses it, while actors play on all cores: small things cost more where threads that compute take the
caches and the cores meanwhile.
"""

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import components
import worker_client
from cost_model import Cost, Kind, Shape
from worker_client import Process

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config

Say = Callable[[str], None]
_TURNS = 3  # beside each other: machines that others share change by the second
_NAMES = {
    *("level_name", "num_envs", "algorithm", "agent_name", "precision", "compression"),
    *("intra_op_threads", "inter_op_threads"),
}


class Saved(NamedTuple):
    """A kind of host, as it lies in a file."""

    kind: Kind
    shape: Shape
    settings: dict[str, Any]  # flags that it depends on
    host: dict[str, Any]  # processor and versions


def measure(config: Config, seconds: float, say: Say = lambda _: None) -> Saved:
    """Each part for so many seconds; most of a minute in all, much of it starting processes."""
    envs, batch = config.num_envs, config.batch_size
    with contextlib.ExitStack() as ends:
        bench = _Bench(config, seconds, ends)
        say(f"1 of 3, an actor's part: {envs} environments; most of a minute left, if others rest")
        actor = bench.actor()
        say(f"2 of 3, a learner's part: {batch} unrolls of {config.unroll_length} steps")
        learner = bench.learner()
        say("3 of 3, the two beside each other, and the wire between them")
        beside = bench.beside(actor, learner)
        wire, (unroll_bytes, parameter_bytes, trained) = bench.wire()
    kind = Kind(cores=bench.cores, **actor, **learner, **beside, **wire)
    shape = Shape(
        num_envs=envs,
        unroll_length=config.unroll_length,
        batch_size=batch,
        unroll_bytes=unroll_bytes,
        parameter_bytes=parameter_bytes,
        gradient_bytes=trained * (2 if config.gradient_dtype == "float16" else 4),
        min_pull_secs=auto.pull_secs(config.min_pull_secs, parameter_bytes),
        inference="learner" if config.inference == "learner" else "actor",
        env_groups=_groups(config),
    )
    return Saved(kind, shape, settings(config), components.host())


class _Bench:
    """Processes that do what actors do, as many as there are cores, and one that is a learner; and
    one for an actor's other threads.

    Each method gives fields of Kind; in this order.
    """

    def __init__(self, config: Config, seconds: float, ends: contextlib.ExitStack):
        self._config, self._seconds, self._envs = config, seconds, config.num_envs
        self._half = -(-config.num_envs // 2)  # of an actor's environments, where they take turns
        self._acts = config.inference != "learner"
        self._plays = "playing" if self._acts else "environment"  # the part that is an actor's
        self.cores = len(os.sched_getaffinity(0))

        def started(threads: int, gpus: bool) -> Process:
            process = Process(config, threads, gpus)
            ends.callback(process.end)
            return process

        *self._actors, self._sender = (
            started(1, config.actor_device == "gpu") for _ in range(self.cores + 1)
        )
        self._learner = started(0, config.device != "cpu")
        self._round = 0.0  # seconds that an actor plays before it sends, where all cores are busy

    def actor(self) -> dict[str, float]:
        """What an actor does on all cores at once; and one whose groups take turns, alone."""

        def crowded(part: str, batch: int) -> float:
            worker_client.together(self._actors, prepare=part, batch=batch)
            return worker_client.crowded(self._actors, self._seconds, part, batch)

        playing, environment, inference = (
            crowded(part, self._envs) for part in ("playing", "environment", "inference")
        )
        found = {
            "environment": environment,
            "inference": min(inference, max(playing - environment, 0.0)),
            "packing": max(playing - environment - inference, 0.0),
        }
        if _groups(self._config) > 1 and self._acts:
            one = self._actors[0]
            one.ask(prepare="turning", batch=self._envs)
            turning = _alone(one, self._seconds, "turning", self._envs)  # it takes several cores
            found |= {"turning": turning.cores, "turning_secs": turning.seconds}
        return found

    def learner(self) -> dict[str, float]:
        """Updates while nothing else runs."""
        size, central_secs = self._config.batch_size, 0.0
        self._learner.ask(prepare="learning", batch=size)
        training = _alone(self._learner, self._seconds, "learning", size)
        if not self._acts:
            many = min(256, 4 * self._envs)
            self._learner.ask(prepare="inference", batch=many)
            central_secs = _alone(self._learner, self._seconds, "inference", many).seconds
        return {
            "training": training.cores,
            "training_secs": training.seconds,
            "central_secs": central_secs,
        }

    def beside(self, actor: dict[str, float], learner: dict[str, float]) -> dict[str, float]:
        """How much dearer both are where a learner trains on what is played beside it."""
        size, length = self._config.batch_size, self._config.unroll_length
        does = ("environment", "inference", "packing") if self._acts else ("environment",)
        acting, training = sum(actor[part] for part in does), learner["training"]
        both = acting + training
        self._round = self._envs * length * both
        every = size * length * max(learner["training_secs"], both / self.cores)
        lasts = max(self._seconds, 3 * every)
        actors, learners = [], []
        for _ in range(_TURNS):
            with self._playing(self._actors, lasts) as played:
                learnt = self._learner.ask(go=lasts, part="learning", batch=size, every=every)
            actors.append(worker_client.of_a_step(played))
            learners.append(worker_client.of_a_step([learnt]))
        # Of what the parts were said to cost: their product is what was measured here.
        return {
            "actor_beside": statistics.median(actors) / acting,
            "learner_beside": statistics.median(learners) / training,
        }

    def wire(self) -> tuple[dict[str, float], tuple[float, float, float]]:
        """What crosses it, and what goes with that; and the bytes of an unroll, of the parameters
        and of those of them that are trained.
        """
        (actor, *others), learner, sender = self._actors, self._learner, self._sender
        envs, half, seconds = self._envs, self._half, self._seconds
        address = learner.ask(prepare="serve", batch=envs)["address"]
        trained = actor.ask(prepare="loading", batch=1)["trained"]
        unroll_bytes = sender.ask(prepare="send", batch=envs, address=address)["unroll_bytes"]
        sender.ask(prepare="pull", batch=1, address=address)
        parameter_bytes = learner.ask(prepare="publishing", batch=1)["parameter_bytes"]
        with self._playing(others, 2 * seconds):  # both by threads that have just computed
            loading = _alone(actor, seconds, "loading", 1).cores
            publishing = _alone(learner, seconds, "publishing", 1).cores
        every = min(self._round, seconds / 4)
        with self._playing(self._actors, 2 * seconds):
            sending, receiving = worker_client.both_ends(
                learner, sender, seconds, "send", envs, every
            )
            pulling, serving = worker_client.both_ends(learner, sender, seconds, "pull", 1, every)
        asking = answering = 0.0
        if not self._acts:
            address = learner.ask(prepare="attend", batch=self._config.batch_size)["address"]
            actor.ask(prepare="asking", batch=half, address=address)
            with self._playing(others, seconds):
                asking, answering = worker_client.both_ends(learner, actor, seconds, "asking", half)
        costs = {
            "sending": sending / self._config.unroll_length,
            "loading": loading,
            "pulling": pulling,
            "receiving": receiving / self._config.unroll_length,
            "publishing": publishing,
            "serving": serving,
            "asking": asking,
            "answering": answering,
        }
        return costs, (unroll_bytes, parameter_bytes, trained)

    @contextlib.contextmanager
    def _playing(self, crowd: list[Process], seconds: float) -> Iterator[list[dict[str, Any]]]:
        """They do what such actors do meanwhile; what they answer is there afterwards."""
        answers: list[dict[str, Any]] = []
        for process in crowd:
            process.tell(go=seconds, part=self._plays, batch=self._envs)
        yield answers
        answers += [process.hear() for process in crowd]


def settings(config: Config) -> dict[str, Any]:
    """The flags that decide what is measured."""
    return {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if f.name in _NAMES or (f.metadata["group"] in {"Data", "Environment"} and not _own(f))
    } | {"env_groups": _groups(config)}


def save(found: Saved, path: str) -> None:
    """For `load`."""
    named = found._replace(kind=found.kind._asdict(), shape=found.shape._asdict())
    try:
        Path(path).write_text(json.dumps(named._asdict(), indent=1) + "\n")
    except OSError as error:
        flags.refuse(f"--save={path}: {error.strerror}")


def load(path: str, config: Config) -> Saved:
    """What `save` wrote, of a run with these flags."""
    try:
        held = json.loads(Path(path).read_text())
        found = Saved(**held | {"kind": Kind(**held["kind"]), "shape": Shape(**held["shape"])})
    except OSError as error:
        flags.refuse(f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        flags.refuse(
            f"{path}: this is no measurement of a host, or another version's; "
            f"plan.py --save={path} writes one"
        )
    asked, measured = config.inference == "learner", found.shape.inference == "learner"
    if asked != measured:
        flags.refuse(
            f"{path} was measured {'with' if measured else 'without'} --inference=learner: measure "
            f"that host {'with' if asked else 'without'} it"
        )
    now = settings(config)
    for name, was in found.settings.items():
        if now.get(name, was) != was:
            flags.refuse(
                f"{path} was measured with --{name}={was}, and this run has --{name}={now[name]}: "
                f"measure that host again, or give the same"
            )
    return found


def _groups(config: Config) -> int:
    """Of an actor's environments; auto: one, as the frontend's actors have."""
    return max(1, config.env_groups)


def _own(f: dataclasses.Field) -> bool:
    return bool(f.metadata["own"])


def _alone(process: Process, seconds: float, part: str, batch: int) -> Cost:
    """Of a step where no other measures; the part is ready.

    Of its time the best fifth counts: what else this machine does meanwhile only adds to it.
    """
    times, cores, steps = [], 0.0, 0
    for _ in range(5):
        begin = time.monotonic()
        answer = process.ask(go=seconds / 5, part=part, batch=batch)
        times.append((time.monotonic() - begin) / answer["steps"])
        cores, steps = cores + answer["cpu"], steps + answer["steps"]
    return Cost(seconds=min(times), cores=cores / steps)
