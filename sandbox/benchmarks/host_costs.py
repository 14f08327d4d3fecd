"""The cost of a step on this kind of host for a run's own shape; `plan.py` predicts runs from it.

`components.py` searches for the batch at which each part is cheapest. This module measures each
part as the flags define it: --num_envs environments at once, updates of --batch_size unrolls, and
the Python code between them. The measuring processes (`worker.py`) do the work of an actor's main
thread, one process per core, all at the same time; an update is measured alone, with a learner's
threads. Then both are measured beside each other to find by how much their costs rise. Finally
the wire is measured about as often as a run uses it, while actors play on all cores: short
operations cost more while other threads compete for the caches and the cores.
"""

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import components
import worker_client
from cost_model import HostCosts, RunShape, StepCost
from progress import ShowProgress
from worker_client import WorkerProcess

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config

_ROUNDS = 3  # repetitions of the joint measurement: the speed of shared machines varies
_SETTING_NAMES = {
    *("level_name", "num_envs", "algorithm", "agent_name", "precision", "compression"),
    *("intra_op_threads", "inter_op_threads"),
    # With replay, an update trains on more steps than the new ones, which are counted.
    *("replay", "replay_ratio"),
}
_SETTING_GROUPS = {"Data", "Environment", "Algorithm", "Network"}
_SHARED_NAMES = {f.name for f in dataclasses.fields(Config)}  # all others are an algorithm's own


class HostMeasurement(NamedTuple):
    """The costs of a kind of host and what they were measured for; `save` writes it."""

    costs: HostCosts
    shape: RunShape
    settings: dict[str, Any]  # flags that the costs depend on
    host: dict[str, Any]  # processor and versions


def measure(
    config: Config, seconds: float, show_progress: ShowProgress = lambda _: None
) -> HostMeasurement:
    """Measure each part for `seconds`; it takes about a minute, mostly to start processes."""
    envs, batch = config.num_envs, config.batch_size
    with contextlib.ExitStack() as exit_stack:
        benchmark = _HostBenchmark(config, seconds, exit_stack)
        show_progress(
            f"1 of 3, an actor's part: {envs} environments; about a minute left on an idle machine"
        )
        actor = benchmark.measure_actor()
        show_progress(f"2 of 3, a learner's part: {batch} unrolls of {config.unroll_length} steps")
        learner = benchmark.measure_learner()
        show_progress("3 of 3, both parts at the same time, and the wire between them")
        beside = benchmark.measure_contention(actor, learner)
        wire, (unroll_bytes, parameter_bytes, trained_count) = benchmark.measure_wire()
    costs = HostCosts(cores=benchmark.cores, **actor, **learner, **beside, **wire)
    shape = RunShape(
        num_envs=envs,
        unroll_length=config.unroll_length,
        batch_size=benchmark.new_unrolls,
        unroll_bytes=unroll_bytes,
        parameter_bytes=parameter_bytes,
        gradient_bytes=trained_count * (2 if config.gradient_dtype == "float16" else 4),
        min_pull_secs=auto.pull_secs(config.min_pull_secs, parameter_bytes),
        inference="learner" if config.inference == "learner" else "actor",
        env_groups=_count_env_groups(config),
    )
    return HostMeasurement(costs, shape, relevant_settings(config), components.describe_host())


class _HostBenchmark:
    """Processes that do the work of actors (one per core), of a learner, and of an actor's sender.

    Each method returns fields of HostCosts; call them in the order of their definition.
    """

    def __init__(self, config: Config, seconds: float, exit_stack: contextlib.ExitStack):
        self._config, self._seconds, self._envs = config, seconds, config.num_envs
        self._half = -(-config.num_envs // 2)  # environments per group if two groups take turns
        self._actor_infers = config.inference != "learner"
        # The task of `worker.py` that is an actor's part.
        self._actor_task = "play" if self._actor_infers else "environment"
        self.cores = len(os.sched_getaffinity(0))

        def start_worker(threads: int, gpus: bool) -> WorkerProcess:
            process = WorkerProcess(config, threads, gpus)
            exit_stack.callback(process.kill)
            return process

        *self._actors, self._sender = (
            start_worker(1, config.actor_device == "gpu") for _ in range(self.cores + 1)
        )
        self._learner = start_worker(0, config.device != "cpu")
        self.new_unrolls = float(config.batch_size)  # of an update; `measure_learner` corrects it
        # Seconds that an actor plays before it sends while all cores are busy.
        self._round_seconds = 0.0

    def measure_actor(self) -> dict[str, float]:
        """Measure actors on all cores at once, and one alone whose groups take turns."""

        def measure_on_all_cores(part: str, batch: int) -> float:
            worker_client.request_all(self._actors, prepare=part, batch=batch)
            return worker_client.measure_concurrently(self._actors, self._seconds, part, batch)

        playing, environment, inference = (
            measure_on_all_cores(part, self._envs) for part in ("play", "environment", "inference")
        )
        costs = {
            "environment": environment,
            "inference": min(inference, max(playing - environment, 0.0)),
            "packing": max(playing - environment - inference, 0.0),
        }
        if _count_env_groups(self._config) > 1 and self._actor_infers:
            one = self._actors[0]
            one.request(prepare="play_in_turns", batch=self._envs)
            # Alone, because it takes several cores.
            turning = _measure_alone(one, self._seconds, "play_in_turns", self._envs)
            costs |= {"turning": turning.core_seconds, "turning_secs": turning.elapsed_seconds}
        return costs

    def measure_learner(self) -> dict[str, float]:
        """Measure updates while nothing else runs."""
        size, central_secs = self._config.batch_size, 0.0
        prepared = self._learner.request(prepare="train_as_learner", batch=size)
        self.new_unrolls = prepared["new_unrolls"]
        training = _measure_alone(self._learner, self._seconds, "train_as_learner", size)
        if not self._actor_infers:
            many = min(256, 4 * self._envs)
            self._learner.request(prepare="inference", batch=many)
            central_secs = _measure_alone(
                self._learner, self._seconds, "inference", many
            ).elapsed_seconds
        return {
            "training": training.core_seconds,
            "training_secs": training.elapsed_seconds,
            "central_secs": central_secs,
        }

    def measure_contention(
        self, actor: dict[str, float], learner: dict[str, float]
    ) -> dict[str, float]:
        """Measure how much both costs rise while a learner trains beside actors on all cores."""
        size, length = self._config.batch_size, self._config.unroll_length
        actor_parts = (
            ("environment", "inference", "packing") if self._actor_infers else ("environment",)
        )
        acting_cost, training_cost = sum(actor[part] for part in actor_parts), learner["training"]
        both = acting_cost + training_cost
        self._round_seconds = self._envs * length * both
        interval = self.new_unrolls * length * max(learner["training_secs"], both / self.cores)
        duration = max(self._seconds, 3 * interval)
        actor_costs, learner_costs = [], []
        for _ in range(_ROUNDS):
            with self._running_actors(self._actors, duration) as actor_answers:
                learner_answer = self._learner.request(
                    measure_seconds=duration, task="train_as_learner", batch=size, interval=interval
                )
            actor_costs.append(worker_client.core_seconds_per_step(actor_answers))
            learner_costs.append(worker_client.core_seconds_per_step([learner_answer]))
        # Relative to the costs above, so that the product is what was measured here.
        return {
            "actor_beside": statistics.median(actor_costs) / acting_cost,
            "learner_beside": statistics.median(learner_costs) / training_cost,
        }

    def measure_wire(self) -> tuple[dict[str, float], tuple[float, float, float]]:
        """Measure sending and receiving, loading, publishing and pulling.

        Return the costs, and the bytes of an unroll, the bytes of the parameters, and the number of
        trained parameters.
        """
        (actor, *others), learner, sender = self._actors, self._learner, self._sender
        envs, half, seconds = self._envs, self._half, self._seconds
        address = learner.request(prepare="receive_unrolls", batch=envs)["address"]
        trained_count = actor.request(prepare="load_parameters", batch=1)["trained"]
        unroll_bytes = sender.request(prepare="send_unrolls", batch=envs, address=address)[
            "unroll_bytes"
        ]
        sender.request(prepare="pull_parameters", batch=1, address=address)
        parameter_bytes = learner.request(prepare="publish_parameters", batch=1)["parameter_bytes"]
        with self._running_actors(others, 2 * seconds):  # leave a core for the measured thread
            loading = _measure_alone(actor, seconds, "load_parameters", 1).core_seconds
            publishing = _measure_alone(learner, seconds, "publish_parameters", 1).core_seconds
        interval = min(self._round_seconds, seconds / 4)
        with self._running_actors(self._actors, 2 * seconds):
            sending, receiving = worker_client.measure_both_ends(
                learner, sender, seconds, "send_unrolls", envs, interval
            )
            pulling, serving = worker_client.measure_both_ends(
                learner, sender, seconds, "pull_parameters", 1, interval
            )
        asking = answering = 0.0
        if not self._actor_infers:
            address = learner.request(prepare="serve_inference", batch=self._config.batch_size)[
                "address"
            ]
            actor.request(prepare="request_actions", batch=half, address=address)
            with self._running_actors(others, seconds):
                asking, answering = worker_client.measure_both_ends(
                    learner, actor, seconds, "request_actions", half
                )
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
        return costs, (unroll_bytes, parameter_bytes, trained_count)

    @contextlib.contextmanager
    def _running_actors(
        self, processes: list[WorkerProcess], seconds: float
    ) -> Iterator[list[dict[str, Any]]]:
        """Run an actor's task on the processes within the block; then the list has the answers."""
        answers: list[dict[str, Any]] = []
        for process in processes:
            process.send(measure_seconds=seconds, task=self._actor_task, batch=self._envs)
        yield answers
        answers += [process.receive() for process in processes]


def relevant_settings(config: Config) -> dict[str, Any]:
    """Return the flags that determine what is measured."""
    return {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if f.name in _SETTING_NAMES or (_is_of_what_is_computed(f) and not _belongs_to_process(f))
    } | {"env_groups": _count_env_groups(config)}


def save(measurement: HostMeasurement, path: str) -> None:
    """Write a measurement that `load` can read."""
    record = {
        "kind": measurement.costs._asdict(),
        "shape": measurement.shape._asdict(),
        "settings": measurement.settings,
        "host": measurement.host,
    }
    try:
        Path(path).write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        flags.refuse(f"--save={path}: {error.strerror}")


def load(path: str, config: Config) -> HostMeasurement:
    """Read what `save` wrote; exit with an error if it was measured with other flags."""
    try:
        record = json.loads(Path(path).read_text())
        costs, shape = HostCosts(**record["kind"]), RunShape(**record["shape"])
        rest = {name: value for name, value in record.items() if name not in ("kind", "shape")}
        measurement = HostMeasurement(costs, shape, **rest)
    except OSError as error:
        flags.refuse(f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        flags.refuse(
            f"{path} is not a measurement of a host, or another version wrote it; "
            f"plan.py --save={path} writes one"
        )
    wants_inference, has_inference = (
        config.inference == "learner",
        measurement.shape.inference == "learner",
    )
    if wants_inference != has_inference:
        flags.refuse(
            f"{path} was measured {'with' if has_inference else 'without'} --inference=learner: "
            f"measure that host {'with' if wants_inference else 'without'} it"
        )
    current = relevant_settings(config)
    for name, measured_value in measurement.settings.items():
        if current.get(name, measured_value) != measured_value:
            flags.refuse(
                f"{path} was measured with --{name}={measured_value}, but this run has "
                f"--{name}={current[name]}: measure that host again, or use the same value"
            )
    return measurement


def _count_env_groups(config: Config) -> int:
    """Return the number of groups of an actor's environments; auto is one, as with the frontend."""
    return max(1, config.env_groups)


def _is_of_what_is_computed(f: dataclasses.Field) -> bool:
    return flags.info(f).group in _SETTING_GROUPS or f.name not in _SHARED_NAMES


def _belongs_to_process(f: dataclasses.Field) -> bool:
    return bool(flags.info(f).own)


def _measure_alone(process: WorkerProcess, seconds: float, task: str, batch: int) -> StepCost:
    """Measure a prepared task while no other process measures.

    The best fifth of the elapsed time counts, because other load on this machine only adds to it.
    """
    times, cores, steps = [], 0.0, 0
    for _ in range(5):
        began = time.monotonic()
        answer = process.request(measure_seconds=seconds / 5, task=task, batch=batch)
        times.append((time.monotonic() - began) / answer["steps"])
        cores, steps = cores + answer["cpu"], steps + answer["steps"]
    return StepCost(elapsed_seconds=min(times), core_seconds=cores / steps)
