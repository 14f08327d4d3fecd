"""Numbers of today's updates, from fixed variables and fixed batches, for a later code to repeat.

    .venv/bin/python -m tests.recorded.record [CASE or ALGORITHM ...]      write those that differ

`test_updates.py` compares. A deliberate change is recorded by this program, and shows as a diff.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.algorithms import agent, contract
from impala_mm.algorithms.interface import Context, PolicyOutput, defines
from impala_mm.algorithms.parts import action_policies
from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data import trajectory
from impala_mm.data.trajectory import Batch
from impala_mm.data.variables import Variables
from impala_mm.distributed import gradients
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.learner import phases
from tests.helpers.in_float64 import InFloat64
from tests.recorded.cases import BASES, CASES, LEVELS, SMALL, Case

HERE = Path(__file__).parent
UPDATES_OF = HERE / "updates"  # a file for each algorithm
UPDATES, COLUMNS = 3, 4
# Names of variables that have changed since they were recorded: new name -> recorded name. The
# initial values are drawn by recorded names, so a renamed variable is compared with itself.
RECORDED_NAMES: dict[str, str] = {}

# A row for each update: the norm and a projection of an array, or a number alone.
Numbers = list[list[float]]
TOLERANCE = 1e-6  # of the norm of an array, or of a metric


# -- variables


def by_key(variables: Variables) -> dict[str, tf.Variable]:
    """Return all variables by group, name and shape; a slot of an optimizer by its owner's name."""
    found: dict[str, tf.Variable] = {}
    owners: dict[str, Iterator[tf.Variable]] = {}
    for group in ("trained", "carried", "local"):
        for variable in getattr(variables, group):
            name = _name(variable)
            if name.endswith(_SLOTS):
                owner = next(owners.setdefault(name, iter(_in_order_of_slots(variables))))
                assert owner.shape == variable.shape, f"{name} is no slot of {owner.name}"
                name = f"{name} of {_name(owner)}"
            key = f"{group}/{name} [{','.join(map(str, variable.shape))}]"
            others = (f"{key} #{number}" for number in itertools.count(2))
            found[next(k for k in itertools.chain([key], others) if k not in found)] = variable
    return found


_SLOTS = ("/m", "/v", "/ms", "/mom")


def _name(variable: tf.Variable) -> str:
    name = variable.name.removesuffix(":0")
    return RECORDED_NAMES.get(name, name)


def _in_order_of_slots(variables: Variables) -> list[tf.Variable]:
    """Return the owners of slots as they follow each other: SAC's optimizers begin with critics."""
    critics = [v for v in variables.trained if v.name.startswith("critic_network/")]
    others = [v for v in variables.trained if not v.name.startswith("critic_network/")]
    own = [v for v in variables.carried if v.name.startswith(("log_temperature", "duals"))]
    return [*critics, *others, *own]


def _draws(*seed: Any) -> np.random.Generator:
    digest = hashlib.sha256(repr(seed).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8]))


def initialise(variables: Variables) -> None:
    """Give values to the trained variables, and to copies of them, by their keys alone.

    Copies, such as a target network's, are known by initial values that are not all equal. All
    other variables, such as slots and counts, begin as the algorithm made them.
    """
    for key, variable in by_key(variables).items():
        if key.startswith("trained/") or len(np.unique(variable.numpy())) > 1:
            inputs = np.prod(variable.shape[:-1]) if variable.shape.rank > 1 else 4
            values = _draws("initial", key).normal(size=variable.shape)
            variable.assign(values / np.sqrt(inputs))


def summary(key: str, values: np.ndarray) -> list[float]:
    """Return the norm of an array, and a projection that the key chooses; a number alone."""
    flat = np.ravel(values).astype(np.float64)
    if flat.size == 1:
        return flat.tolist()
    with np.errstate(invalid="ignore"):  # returns that are not known are infinite
        projection = _draws("projection", key).normal(size=flat.size) @ flat / np.sqrt(flat.size)
    return [float(np.linalg.norm(flat)), float(projection)]


# -- batches


def _is_end(t: int, b: int) -> str:
    """Return how the step into entry t of column b ends an episode; usually empty."""
    return {2: "terminated", 5: "truncated"}.get((t + 3 * b) % 7, "") if t else ""


def _leaf(spec: Any, lead: list[int], seed: Any) -> np.ndarray:
    """Return an array for a spec, with values that fit its type."""
    draws, shape, dtype = _draws(seed), [*lead, *spec.shape], spec.dtype.as_numpy_dtype
    if spec.dtype == tf.bool:
        return draws.random(shape) < 0.3
    if spec.dtype.is_integer:
        most = 256 if spec.dtype == tf.uint8 else 2
        return draws.integers(0, most, shape).astype(dtype)
    return draws.uniform(-0.9, 0.9, shape).astype(dtype)


def _nest(spec: Any, name: str, lead: list[int], seed: Any) -> Any:
    """Return arrays for a nest of specs; each is drawn by its own path, in whatever order."""
    leaves = zip(tf.nest.flatten(spec), trajectory.leaf_names(spec, name), strict=True)
    return tf.nest.pack_sequence_as(spec, [_leaf(s, lead, (seed, path)) for s, path in leaves])


def _actions_and_masks(spec: EnvironmentSpec, lead: list[int], seed: Any) -> tuple[Any, Any]:
    """Return actions within their ranges, and masks that allow the action of the next entry."""
    actions, masks = [], []
    for number, part in enumerate(spec.actions.leaves):
        draws, shape = _draws(seed, "actions", number), [*lead, *part.shape]
        if not part.choices:
            actions.append(draws.uniform(-0.9, 0.9, shape).astype(np.float32))
            masks.append(())
            continue
        sizes = np.array(part.choices)
        flat = draws.integers(0, sizes, [*lead, len(sizes)])
        actions.append(flat.reshape(shape).astype(np.int32))
        allowed = draws.random([*lead, sizes.sum()]) < 0.5
        chosen = np.roll(flat, -1, axis=0) + np.cumsum([0, *sizes[:-1]])
        np.put_along_axis(allowed, chosen, True, axis=-1)
        masks.append(allowed)
    return spec.actions.pack(actions), spec.actions.pack(masks) if spec.masks != () else ()


def make_batch(made: Any, config: Any, spec: EnvironmentSpec, case: Case, number: int) -> Batch:
    """Return the batch of an update by the algorithm's `unroll`, whose columns end episodes.

    An algorithm with a source of its own learns from single steps, if it remembers nothing.
    """
    unroll, seed = made.unroll, ("batch", number)
    length, columns = unroll.length, COLUMNS
    if own := made.minibatch_columns:
        length = unroll.length if tf.nest.flatten(unroll.start) else 1
        columns = own * config.optimizer_steps
    lead = [length + unroll.overlap, columns]
    entries = _nest(unroll.step._replace(action=(), mask=()), "entry", lead, seed)
    action, mask = _actions_and_masks(spec, lead, seed)
    ends = np.array([[_is_end(t, b) for b in range(columns)] for t in range(lead[0])])
    first = np.roll(ends != "", 1, axis=0)
    first[0] = np.arange(columns) % 4 == 2
    terminated, truncated = ((ends == kind) & ~first for kind in ("terminated", "truncated"))
    entries = entries._replace(
        action=action, mask=mask, first=first, terminated=terminated, truncated=truncated
    )
    weight = _draws(seed, "weight").uniform(0.3, 1.0, columns).astype(np.float32)
    weight[-1] = 0.0  # padding
    numbers, start = np.arange(columns), _nest(unroll.start, "start", [columns], seed)
    batch = Batch(entries, start, numbers, weight, numbers, weight > (0 if config.rounds else 0.6))
    if case.recorded:
        batch = batch._replace(key=np.where(numbers % 2, -1, numbers))
    if case.offline:
        nothing = tf.nest.map_structure(np.zeros_like, entries.extras)
        start = tf.nest.map_structure(lambda x: x.numpy(), made.initial_state(columns))
        batch = batch._replace(
            unrolls=entries._replace(extras=nothing),
            start=start,
            key=np.full(columns, -1),
            fresh=np.zeros(columns, bool),
        )
    return batch


# -- teachers


class Teacher:
    """A policy that is a function of the observations, as a teacher, a guide or a reference."""

    name, notes, flags_read = "x", (), frozenset()

    def __init__(self, number: int, size: int, config: Any):
        self.config, self._number, self._size = config, number, size
        self.greedy = getattr(config, "computes_action_values", False)

    def _seen(self, entries: Any) -> tf.Tensor:
        seen = [tf.cast(x, tf.float32) for x in tf.nest.flatten(entries.observation)]
        rank = entries.first.shape.rank
        return tf.add_n([tf.reduce_mean(x, list(range(rank, x.shape.rank))) for x in seen])

    def parameters(self, entries: Any) -> tf.Tensor:
        places = tf.range(1.0, self._size + 1) * (0.7 + self._number)
        return tf.sin(places + 3.0 * self._seen(entries)[..., tf.newaxis])

    def judge(self, entries: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return self.parameters(entries), tf.cos(self._seen(entries) + self._number)

    def initial_state(self, batch: Any) -> Any:
        return ()

    def step(self, entry: Any, state: Any) -> tuple[tf.Tensor, Any]:
        return self.parameters(entry), state

    def judge_unroll(self, entries: Any, start: Any) -> PolicyOutput:
        parameters, values = self.judge(entries)
        return PolicyOutput(parameters, values, parameters)


# -- updates


class Made(NamedTuple):
    """The algorithm of a case."""

    algorithm: Any
    config: Any
    spec: EnvironmentSpec
    teachers: list[Teacher]


def make(case: Case) -> Made:
    """Return the algorithm of a case, its variables with fixed values."""
    spec = LEVELS[case.level]()
    flags = SMALL | BASES[case.algorithm] | case.flags
    if case.level in ("image", "frames"):
        del flags["mlp_sizes"]  # the network of images has no MLP
    kind = Config.of_algorithm(case.algorithm)
    config: Any = auto.for_task(
        kind(algorithm=case.algorithm, level_name=spec.level_name, **flags), spec
    )
    size = action_policies.choose(
        spec.actions, config.box_policy, config.box_deviation
    ).num_parameters
    reference, *teachers = [Teacher(number, size, config) for number in range(case.teachers + 1)]
    made = agent.make_agent(
        config, 0, {spec.level_name: spec}, load_policy=lambda *_, **__: reference
    ).algorithm
    initialise(made.variables)
    tools = phases.PolicyTools(lambda *_, **__: reference, lambda *_: teachers, lambda *_: 0.0)
    learning: Any = SimpleNamespace(algorithm=made, spec=spec)
    phases.Phases(learning, config, SingleLearner(), Path(), tools, lambda _: None).begin_teachers()
    return Made(made, config, spec, teachers)


def compute(case: Case) -> dict[str, Numbers]:
    """Return what is recorded of a case, by name."""
    made, config, spec, teachers = make(case)
    wide, exchange = InFloat64(), GradientReducer(SingleLearner(), config)
    batches = [make_batch(made, config, spec, case, number) for number in range(UPDATES)]
    update = made.offline_update if case.offline else made.update

    def make_update(batch: Batch, known: tf.Tensor, number: tf.Tensor) -> Any:
        exchange.begin(number)
        metrics, priorities = update(batch, Context(*tf.unstack(known)), exchange)
        return metrics, priorities, exchange.read()

    found: dict[str, Numbers] = {}

    def add(name: str, row: list[float]) -> None:
        found.setdefault(name, []).append(row)

    run = None
    for number, batch in enumerate(batches):
        progress = [0, 1000, np.nan] if case.offline else [100 + 100 * number, 1000, 20 * number]
        known = np.array(progress, np.float32)
        if not case.offline and number == 0:
            known[2] = np.nan  # fewer than 100 games have ended
        arguments = batch, known, np.int64(number)
        run = run or wide.function(make_update, *arguments)
        metrics, priorities, measured = run(*arguments)
        summed = gradients.summarize(np.concatenate(measured))
        metrics = {"clipped_share": summed.clipped_share, "grad_norm": summed.grad_norm} | metrics
        for name, value in metrics.items():
            add(f"metrics/{name}", [float(value)])
        add("priorities", summary("priorities", priorities))
        for key, variable in by_key(made.variables).items():
            add(key, summary(key, wide.value(variable)))
    answers = _answers(made, case, batches[0], wide)
    for name, leaf in [*answers, *_guided(made, teachers, batches[0])]:
        add(name, summary(name, leaf))
    return found


def _answers(made: Any, case: Case, batch: Batch, wide: InFloat64) -> Iterator[tuple[str, Any]]:
    """Yield what an actor and a replay ask of the algorithm after the updates."""
    unrolls, start = tf.nest.map_structure(tf.constant, (batch.unrolls, batch.start))
    entry = tf.nest.map_structure(lambda x: x[1], unrolls)
    greedily = tf.zeros(len(batch.weight))
    asked: dict[str, Callable[[], Any]] = {"judge": lambda: made.judge(entry, start)}
    if not case.flags.get("noisy"):  # its noise is TensorFlow's own
        asked["act"] = lambda: contract.evaluated_act(made)(entry, start, greedily)
    if len(unrolls.first) == made.unroll.length + made.unroll.overlap:
        asked["judge_unroll"] = lambda: made.judge_unroll(unrolls, start)
        if defines(first := made.first_priorities):
            asked["first_priorities"] = lambda: first(unrolls, start)
        if "elite" in case.name or "attentive" in case.name:
            asked["compare_features"] = lambda: made.compare_features(unrolls, start)
    answers = wide.function(lambda: {name: ask() for name, ask in asked.items()})()
    names = trajectory.leaf_names(answers, "", "/")
    for name, leaf in zip(names, tf.nest.flatten(answers), strict=True):
        if leaf is not None:
            yield name[1:], leaf


def _guided(made: Any, teachers: list[Teacher], batch: Batch) -> Iterator[tuple[str, Any]]:
    """Yield what an actor records where teachers act in its environments."""
    for teacher in teachers:
        teacher.greedy = True  # it draws no random actions
    guides = made.features.acting_hooks(len(batch.weight), [1], lambda settings: teachers)
    if not guides:
        return
    (guide,) = guides
    for t in range(min(3, len(batch.unrolls.first))):
        entry = tf.nest.map_structure(lambda x, t=t: x[t], batch.unrolls)
        actions, extras = guide.take_over(entry, entry.action, tf.nest.flatten(entry.extras))
        for number, leaf in enumerate([*tf.nest.flatten(actions), *extras]):
            yield f"guide/{t}/{number}", np.asarray(leaf)


# -- what is recorded


def differences(recorded: dict[str, Numbers], found: dict[str, Numbers]) -> list[str]:
    """Return what of a case differs, in words."""
    problems = [f"{name} is not there any more" for name in sorted(recorded.keys() - found.keys())]
    problems += [f"{name} was not there before" for name in sorted(found.keys() - recorded.keys())]
    for name in recorded.keys() & found.keys():
        rows, now = recorded[name], found[name]
        if (distance := _distance(rows, now)) > TOLERANCE:
            problems.append(f"{name} differs by {distance:.1e}: it was {rows}, it is {now}")
    return problems


def _distance(before: Numbers, now: Numbers) -> float:
    """Return the largest difference, as a share of the array's norm or of the metric."""
    if np.shape(before) != np.shape(now):
        return np.inf
    old, new = np.array(before, np.float64), np.array(now, np.float64)
    same = (old == new) | (np.isnan(old) & np.isnan(new))  # some are not known: NaN or infinite
    old, new = (np.where(same, 0.0, each) for each in (old, new))
    if not np.isfinite([old, new]).all():
        return np.inf
    scale = np.max(np.abs(old), axis=-1, keepdims=True) + 1e-6
    return float(np.max(np.abs(new - old) / scale))


def read(name: str) -> dict[str, dict[str, Numbers]]:
    """Return what is recorded in a file, by case; nothing if there is none."""
    path = UPDATES_OF / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def record_updates(names: list[str]) -> None:
    """Write the cases of these names, of an algorithm, or those that are `missing`; or all.

    Numbers that do not differ stay as they are.
    """
    for algorithm in BASES:
        cases = [case for case in CASES if case.algorithm == algorithm]
        for case in cases:
            before = read(algorithm).get(case.name)
            of_case = {case.name, algorithm, "missing" if before is None else ""}
            if names and not of_case & set(names):
                continue
            found = compute(case)
            if before is None or differences(before, found):
                print(f"{case.name}: {'new' if before is None else 'differs'}", flush=True)
                known = read(algorithm) | {case.name: found}  # others may have been written since
                ordered = {each.name: known[each.name] for each in cases if each.name in known}
                write(UPDATES_OF / f"{algorithm}.json", ordered)


def write(path: Path, recorded: dict[str, dict[str, Numbers]]) -> None:
    """Write a line for each quantity, so that a diff names it."""
    blocks = []
    for case, quantities in recorded.items():
        lines = [
            f"  {json.dumps(key)}: {_as_text(rows)}" for key, rows in sorted(quantities.items())
        ]
        blocks.append(f" {json.dumps(case)}: {{\n" + ",\n".join(lines) + "\n }")
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def _as_text(rows: Numbers) -> str:
    rounded = [[float(f"{number:.7g}") for number in row] for row in rows]
    return json.dumps(rounded, separators=(",", ":"))


if __name__ == "__main__":
    record_updates(sys.argv[1:])
