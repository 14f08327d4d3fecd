"""The cost of a step of environments, measured in turn: levels beside each other, vectors bare.

    python sandbox/benchmarks/environments.py [--num_envs=16] [--rounds=9] LEVEL [LEVEL ...]

Prints, for each level, the CPU microseconds of a step of one environment by random actions, all
threads of the process together: the median of `rounds` rounds, of which each measures every level.
`bare` is a vector without what this project adds to it. Arguments of environments and wrappers may
follow a level: 'LEVEL{"env_wrappers": "..."}'.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from impala_mm.environments import nests
from impala_mm.environments.make import find_level, make_environments
from impala_mm.environments.vectors import VectorLevel

_SECONDS = 0.1  # of CPU time, of a level in a round


def _microseconds(step: Callable[[Any], Any], actions: list[Any]) -> float:
    """Return the CPU time of a call for each of its actions' environments."""
    begin, calls = time.process_time(), 0
    while (spent := time.process_time() - begin) < _SECONDS:
        step(actions[calls % len(actions)])
        calls += 1
    return spent / calls / len(nests.flatten(actions[0])[0]) * 1e6


def main() -> None:
    """Measure the levels that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("levels", nargs="+")
    parser.add_argument("--num_envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    random, measured = np.random.default_rng(0), {}
    for named in given.levels:
        name, brace, options = named.partition("{")
        chosen = json.loads(brace + options or "{}")
        environments = make_environments(name, given.num_envs, 0, **chosen)
        environments.reset()
        spec = environments.spec
        actions = [spec.actions.sample(given.num_envs, (), random) for _ in range(20)]
        measured[name] = environments.step, actions
        level = find_level(name, **chosen)
        if isinstance(level, VectorLevel):
            vector = level.open(False, given.num_envs)
            vector.reset(seed=0)
            batches = [spec.actions.as_batch(each) for each in actions]
            measured[f"{name}, bare"] = vector.vector.step, batches
    rounds = [
        {name: _microseconds(*it) for name, it in measured.items()} for _ in range(given.rounds)
    ]
    for name in measured:
        print(f"{statistics.median(each[name] for each in rounds):8.2f}  {name}")


if __name__ == "__main__":
    main()
