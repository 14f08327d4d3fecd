"""What a step costs on this kind of host, at a run's own shape; `plan.py` predicts runs from it.

`components.py` looks for the batch at which each part is cheapest. Here each part is measured as
the flags will have it: --num_envs environments at once, updates of --batch_size unrolls, Python
between them included. Its measuring processes (`parts.py`) do it: where a run has one thread, as
many work side by side as there are cores; an update is alone, with the threads of a learner.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import components
import measuring
from measuring import Process

from impala_mm import demand, flags
from impala_mm.config import Config
from impala_mm.demand import Cost, Kind, Shape

Say = Callable[[str], None]
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
    """Each part for so many seconds; half a minute in all, most of it starting processes."""
    cores, envs, batch = len(os.sched_getaffinity(0)), config.num_envs, config.batch_size
    gpus = config.actor_device == "gpu"
    crowd = [Process(config, 1, gpus) for _ in range(max(2, cores))]
    try:
        say(f"1 of 3, an actor's part: {envs} environments; half a minute left, if others rest")
        playing, environment, inference = (
            _crowded(crowd[:cores], seconds, part, envs)
            for part in ("playing", "environment", "inference")
        )
        learner, actor = crowd[:2]
        half = -(-envs // 2)  # of an actor's environments, where they take turns
        halved = _crowded(crowd[:cores], seconds, "inference", half)
        say("2 of 3, the wire between them")
        trained = actor.ask(prepare="loading", batch=1)["trained"]
        loading = _alone(actor, seconds, "loading", 1).cores
        parameter_bytes = learner.ask(prepare="publishing", batch=1)["parameter_bytes"]
        publishing = _alone(learner, seconds, "publishing", 1).cores
        address = learner.ask(prepare="serve", batch=envs)["address"]
        unroll_bytes = actor.ask(prepare="send", batch=envs, address=address)["unroll_bytes"]
        sending, receiving = measuring.both_ends(learner, actor, seconds, "send", envs)
        actor.ask(prepare="pull", batch=1, address=address)
        pulling, serving = measuring.both_ends(learner, actor, seconds, "pull", 1)
        asking = answering = 0.0
        if config.inference == "learner":
            address = learner.ask(prepare="attend", batch=batch)["address"]
            actor.ask(prepare="asking", batch=half, address=address)
            asking, answering = measuring.both_ends(learner, actor, seconds, "asking", half)
    finally:
        _end(crowd)
    trainer = Process(config, 0, config.device != "cpu")
    try:
        say(f"3 of 3, a learner's part: {batch} unrolls of {config.unroll_length} steps")
        trainer.ask(prepare="learning", batch=batch)
        training = _alone(trainer, seconds, "learning", batch)
        central_secs = 0.0
        if config.inference == "learner":
            many = min(256, 4 * envs)
            trainer.ask(prepare="inference", batch=many)
            central_secs = _alone(trainer, seconds, "inference", many).seconds
    finally:
        _end([trainer])
    kind = Kind(
        cores=cores,
        environment=environment,
        inference=inference,
        packing=max(0.0, playing - environment - inference),
        sending=sending / config.unroll_length,
        loading=loading,
        pulling=max(0.0, pulling - loading),
        training=training.cores,
        training_secs=training.seconds,
        receiving=receiving / config.unroll_length,
        publishing=publishing,
        serving=serving,
        central_secs=central_secs,
        halved=halved,
        asking=asking,
        answering=answering,
    )
    shape = Shape(
        num_envs=envs,
        unroll_length=config.unroll_length,
        batch_size=batch,
        unroll_bytes=unroll_bytes,
        parameter_bytes=parameter_bytes,
        gradient_bytes=trained * (2 if config.gradient_dtype == "float16" else 4),
        min_pull_secs=demand.pull_secs(config.min_pull_secs, parameter_bytes),
        inference="learner" if config.inference == "learner" else "actor",
        env_groups=max(1, config.env_groups),  # auto: one, as the frontend's actors have
    )
    return Saved(kind, shape, settings(config), components.host())


def settings(config: Config) -> dict[str, Any]:
    """The flags that decide what is measured."""
    return {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if f.name in _NAMES or (f.metadata["group"] in {"Data", "Environment"} and not _own(f))
    }


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
        flags.refuse(f"{path}: this is no measurement of a host; plan.py --save={path} writes one")
    if config.inference == "learner" and not found.kind.asking:
        flags.refuse(f"{path} was measured without --inference=learner: measure that host with it")
    now = settings(config)
    for name, was in found.settings.items():
        if now.get(name, was) != was:
            flags.refuse(
                f"{path} was measured with --{name}={was}, and this run has --{name}={now[name]}: "
                f"measure that host again, or give the same"
            )
    return found


def _own(f: dataclasses.Field) -> bool:
    return bool(f.metadata["own"])


def _crowded(crowd: list[Process], seconds: float, part: str, batch: int) -> float:
    """Core-seconds of a step where all of them do the same."""
    measuring.together(crowd, prepare=part, batch=batch)
    return measuring.crowded(crowd, seconds, part, batch)


def _alone(process: Process, seconds: float, part: str, batch: int) -> Cost:
    """Of a step where nothing else runs; the part is ready.

    Of its time the best fifth counts: what else this machine does meanwhile only adds to it.
    """
    times, cores, steps = [], 0.0, 0
    for _ in range(5):
        begin = time.monotonic()
        answer = process.ask(go=seconds / 5, part=part, batch=batch)
        times.append((time.monotonic() - begin) / answer["steps"])
        cores, steps = cores + answer["cpu"], steps + answer["steps"]
    return Cost(seconds=min(times), cores=cores / steps)


def _end(processes: list[Process]) -> None:
    for process in processes:
        process.end()
