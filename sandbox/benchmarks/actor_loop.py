"""Steps/s of an actor beside what its environments and its network alone allow.

    PYTHONPATH=extra python sandbox/benchmarks/actor_loop.py --level_name=HalfCheetah-v4,Hopper-v4

The parts take turns in one process, with one thread each; times are CPU time, the middle of all
turns, in brackets the least.

    limit      = environments / (plain loop over all environments + one call of the network)
    efficiency = steps/s of the actor's loop / limit

The loop has everything that an actor's main thread does but loading policies and sending unrolls.
The plain loop only calls `step`, and `reset` at the end of an episode. A part that is measured
alone finds its code and data in the processor's caches; where parts alternate, it does not, so that
an efficiency of 1 cannot be reached.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from random_actions import random_actions

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.runtime import lifecycle

_LEVELS = "HalfCheetah-v4,Hopper-v4"
_TURNS, _TURN_SECONDS = 15, 0.3
_ACTIONS = 1000  # random ones, which all parts take again and again

_LOOP, _NETWORK, _ACTOR = "plain loop", "network", "the actor's loop"

# A function to repeat, and the steps of environments that each call makes.
_Part = tuple[Callable[[], Any], int]


def main() -> None:
    """Measure each level."""
    (config,), given = command_line.parse(sys.argv, __doc__ or "", Config)
    levels = config.level_name if "level_name" in given else _LEVELS
    lifecycle.limit_threads_and_memory()
    lifecycle.load_tensorflow(1, 1, "cpu")
    for level in levels.split(","):
        _measure_level(dataclasses.replace(config, level_name=level.strip()))


def _measure_level(config: Config) -> None:
    from impala_mm.actor.acting import Act  # noqa: PLC0415
    from impala_mm.actor.actor import UnrollPlayer  # noqa: PLC0415
    from impala_mm.algorithms import agent  # noqa: PLC0415
    from impala_mm.algorithms.interface import Role  # noqa: PLC0415
    from impala_mm.config import auto  # noqa: PLC0415
    from impala_mm.environments import from_flags  # noqa: PLC0415
    from impala_mm.environments.make import made_level, make_environments  # noqa: PLC0415

    made = agent.make_agent(config, 0, role=Role.ACTOR)
    count = auto.num_envs(config, made.spec.observation)
    options = from_flags.environment_options(config)
    level = made_level(config.level_name, **options)
    single, looped = ([level.open(False) for _ in range(n)] for n in (1, count))
    vector, played = (make_environments(config.level_name, count, 1, **options) for _ in range(2))
    sync = gymnasium.vector.SyncVectorEnv([lambda: level.open(False)] * count)
    sync.reset(seed=1)
    act, player = Act(made.algorithm, count), UnrollPlayer(made.algorithm, [(played, count)])
    state, entry = _first_entry(made.algorithm, vector.reset(), count)
    drawn = random_actions(made.spec.actions, count, _ACTIONS)
    given = [made.spec.actions.to_environments(actions) for actions in drawn]
    parts: dict[str, _Part] = {
        "one environment": (_plain_loop(single, given), 1),
        _LOOP: (_plain_loop(looped, given), count),
        "gymnasium's SyncVectorEnv": (_cycled(sync.step, given), count),
        "our vector": (_cycled(vector.step, drawn), count),
        _NETWORK: (lambda: act(entry, state, []), count),
        _ACTOR: (player.play, count * made.algorithm.unroll.length),
    }
    computed = "NumPy" if act.by_numpy else "TensorFlow"
    print(
        f"{config.level_name}: {count} environments, {made.weights:,} weights, by {computed}; "
        f"microseconds of CPU time of a step"
    )
    _print_rows(_in_turns(parts))


def _first_entry(algorithm: Any, step: Any, count: int) -> tuple[list[Any], Any]:
    """Return the core state at the start, a flat list, and the entries of a reset."""
    import tensorflow as tf  # noqa: PLC0415

    from impala_mm.data.unroll_writer import UnrollWriter  # noqa: PLC0415

    state = algorithm.initial_state(count)
    writer = UnrollWriter(algorithm.unroll, count, state)
    writer.write_reset(step)
    return tf.nest.flatten(state), tf.nest.map_structure(np.copy, writer.newest._replace(extras=()))


def _cycled(step: Callable[[Any], Any], actions: list[Any]) -> Callable[[], Any]:
    """Return a function that calls `step` with the next of the actions."""
    numbers = iter(range(10**12))
    return lambda: step(actions[next(numbers) % _ACTIONS])


def _plain_loop(environments: list[Any], actions: list[Any]) -> Callable[[], Any]:
    """Return a function that steps each environment once, as little as that takes."""
    for number, environment in enumerate(environments):
        environment.reset(seed=number)

    def step(row: Any) -> None:
        for environment, action in zip(environments, row, strict=False):
            _, _, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                environment.reset()

    return _cycled(step, actions)


def _in_turns(parts: dict[str, _Part]) -> dict[str, list[float]]:
    """Return the CPU seconds of a step, by part, for each of its turns."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for function, _ in parts.values():
        function()
    for _ in range(_TURNS):
        for name, (function, steps) in parts.items():
            calls, begin = 0, time.process_time()
            while (lasted := time.process_time() - begin) < _TURN_SECONDS:
                function()
                calls += 1
            seconds[name].append(lasted / calls / steps)
    return seconds


def _print_rows(seconds: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    for name, each in seconds.items():
        print(
            f"  {name:26} {1e6 * middle[name]:7.1f} ({1e6 * min(each):.1f})"
            f"{1 / middle[name]:10,.0f} steps/s"
        )
    limit = 1 / (middle[_LOOP] + middle[_NETWORK])
    print(
        f"  {_LOOP} and {_NETWORK} allow {limit:,.0f} steps/s: efficiency "
        f"{1 / middle[_ACTOR] / limit:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
