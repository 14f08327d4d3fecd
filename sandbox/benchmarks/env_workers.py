"""Steps/s of an actor whose environments are slow, by the number of its worker processes.

    python sandbox/benchmarks/env_workers.py [--level_name=HalfCheetah-v5] [--num_envs=16] [...]

Unset, the levels are one that waits 5 ms in each step, as for a simulator in another process, and
one that computes for 5 ms. Every line gives the steps/s of environments and network together, their
ratio to those without workers, and the parts that a step of all environments consists of.
"""

import dataclasses
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.runtime import lifecycle

_HERE = "sandbox.benchmarks.env_workers"
_SECONDS = 4.0  # seconds of each measurement
_STEP_SECONDS = 0.005
_WORKERS = (0, 1, 2, 4)


class _Slow(gymnasium.Env):
    """An environment whose step takes 5 ms."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        """Start an episode."""
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action):
        """Take 5 ms."""
        self._spend()
        return np.zeros(8, np.float32), 0.0, False, False, {}


class Waits(_Slow):
    """An environment that waits, as for a simulator in another process."""

    def _spend(self) -> None:
        time.sleep(_STEP_SECONDS)


class Computes(_Slow):
    """An environment that computes."""

    def _spend(self) -> None:
        until = time.thread_time() + _STEP_SECONDS
        while time.thread_time() < until:
            pass


def main() -> None:
    """Measure each level with each number of workers."""
    (config,), given = command_line.parse(sys.argv, __doc__ or "", Config)
    levels = [f"{_HERE}:Waits", f"{_HERE}:Computes"]
    if "level_name" in given:
        levels = [name.strip() for name in config.level_name.split(",")]
    lifecycle.limit_threads_and_memory()
    lifecycle.load_tensorflow(1, 1, "cpu")
    for level in levels:
        _measure_level(config, level)


def _measure_level(config: Config, level: str) -> None:
    from impala_mm.actor.actor import UnrollPlayer  # noqa: PLC0415
    from impala_mm.algorithms import agent  # noqa: PLC0415
    from impala_mm.config import auto  # noqa: PLC0415
    from impala_mm.environments import from_flags  # noqa: PLC0415
    from impala_mm.environments.make import make_environments  # noqa: PLC0415
    from impala_mm.runtime.heartbeat import Heartbeat  # noqa: PLC0415

    config = dataclasses.replace(config, level_name=level)
    made = agent.make_agent(config, 0)
    count = auto.num_envs(config, made.spec.observation)
    options = from_flags.environment_options(config)
    alone = 0.0
    print(f"{level}: {count} environments")
    for workers in _WORKERS:
        environments = make_environments(level, count, 1, workers=workers, **options)
        player = UnrollPlayer(made.algorithm, [(environments, count)], Heartbeat())
        player.play()
        begin, steps, stepping, acting = time.perf_counter(), 0, 0.0, 0.0
        while (lasted := time.perf_counter() - begin) < _SECONDS:
            player.play()
            steps += config.unroll_length
            stepping, acting = stepping + player.stepping, acting + player.acting
        player.close()
        environments.close()
        alone = alone or lasted / steps
        print(
            f"  {workers} workers: {steps * count / lasted:7.0f} steps/s, "
            f"{alone * steps / lasted:.2f} x those without; of {1e3 * lasted / steps:.2f} ms, the "
            f"step takes {1e3 * stepping / steps:.2f} and the network {1e3 * acting / steps:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
