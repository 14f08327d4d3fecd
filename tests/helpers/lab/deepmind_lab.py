"""A stand-in for DeepMind Lab's Python module, which keeps to its published interface.

Written after docs/users/python_api.md of the engine, and as strict as its C code about types and
the order of calls. Its levels: walk forward on a map of rewards, whose places the seed draws.
"""

import json
import os
import tempfile

import numpy as np

EPISODE = 30  # frames
CALLS = []  # (name, arguments) of all calls, in this process
_BOUNDS = np.array([512, 512, 1, 1, 1, 1, 1])


def set_runfiles_path(path):
    CALLS.append(("set_runfiles_path", path))


class Lab:
    def __init__(self, level, observations, config={}, renderer="software", level_cache=None):  # noqa: B006
        assert (type(level), type(observations), type(config)) == (str, list, dict)
        assert all(type(text) is str for item in config.items() for text in item)
        if not level.startswith(("contributed/dmlab30/", "tests/")):
            raise RuntimeError(f"Invalid levelName flag '{level}' - \"no such script\"")
        if unknown := set(observations) - {"RGB_INTERLEAVED", "INSTR"}:
            raise ValueError(f"Unknown observation '{min(unknown)}'.")
        CALLS.append(("Lab", (level, config, renderer)))
        self._level, self._observations, self._cache = level, observations, level_cache
        self._shape = int(config["height"]), int(config["width"]), 3
        self._episode, self._running, self._closed = 0, False, False

    def reset(self, episode=-1, seed=None):
        assert not self._closed
        assert seed is None or type(seed) is int
        CALLS.append(("reset", seed))
        self._episode = (episode if episode >= 0 else self._episode) + 1
        self._frame, self._place, self._running = 0, 0, True
        key = f"{self._level}:{seed}"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map.pk3")
            if self._cache is None or not self._cache.fetch(key, path):
                rewards = np.random.default_rng(seed).integers(0, 5, EPISODE + 1).tolist()
                with open(path, "w") as file:
                    json.dump(rewards, file)
                CALLS.append(("compile", key))
                if self._cache is not None:
                    self._cache.write(key, path)
            with open(path) as file:
                self._rewards = json.load(file)
        return True

    def is_running(self):
        return self._running

    def step(self, action, num_steps=1):
        if not self._running:
            raise RuntimeError("Environment in wrong status to advance.")
        assert (type(action), action.dtype, action.shape) == (np.ndarray, np.intc, (7,))
        assert (np.abs(action) <= _BOUNDS).all()
        CALLS.append(("step", num_steps))
        total = 0.0
        for _ in range(num_steps):
            self._place = max(self._place + int(action[3]), 0)
            total += self._rewards[self._place]
            self._frame += 1
            if self._frame == EPISODE:
                self._running = False
                break
        return total

    def observations(self):
        if not self._running:
            raise RuntimeError("Environment in wrong status for call to observations()")
        seen = {
            "RGB_INTERLEAVED": np.full(self._shape, self._frame, np.uint8),
            "INSTR": f"go {self._episode}" if "language" in self._level else "",
        }
        return {name: seen[name] for name in self._observations}

    def action_spec(self):
        names = (
            "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME LOOK_DOWN_UP_PIXELS_PER_FRAME STRAFE_LEFT_RIGHT "
            "MOVE_BACK_FORWARD FIRE JUMP CROUCH"
        )
        return [
            {"name": name, "min": -most if most > 1 or i in {2, 3} else 0, "max": most}
            for i, (name, most) in enumerate(zip(names.split(), _BOUNDS.tolist(), strict=True))
        ]

    def close(self):
        self._closed, self._running = True, False
