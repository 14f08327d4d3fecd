"""One environment as the agent plays it and, beside its observations, what it looks like to people.

`record` makes videos of it. gymnasium's and gym's environments draw themselves. Atari is emulated a
second time, in colour: from the same seed and by the same actions it is the same game, and what the
agent sees of the first stays what it saw in training.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from impala_mm import environments
from impala_mm.environments import BadLevel, Environments, Options, levels, spaces
from impala_mm.environments.action_names import action_names

_FPS = 30.0  # where the environment does not say


class Shown(NamedTuple):
    """One environment; `environments` has no other."""

    environments: Environments
    picture: Callable[[], np.ndarray]  # uint8 [H, W, 3], RGB, as of the last step or reset
    fps: float  # steps a second, as people would watch them
    actions: list[str]  # their names, numbers where they have none


def open_shown(level_name: str, seed: int, **options: Any) -> Shown:
    """One environment of this level, with `options` as in `Options`; raises BadLevel."""
    spec = environments.spec(level_name, **options)
    level, chosen = levels.find(level_name), Options(**options)
    names = action_names(level_name, spec.num_actions, **options)
    game = level.game(chosen)
    if game:
        return _atari(spec, game, seed, names)
    from impala_mm.environments import vector  # noqa: PLC0415

    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault(
            "SDL_VIDEODRIVER", "dummy"
        )  # pygame would look for a screen, and moan
    made: list[Any] = []

    def opens() -> Any:
        made.append(level.open(**({"render_mode": "rgb_array"} if draws else {})))
        return made[-1]

    plain = level.open()
    try:
        reading = spaces.read(level_name, plain, chosen.width, chosen.height)
        draws = "rgb_array" in plain.metadata.get("render_modes", [])
        fps = float(plain.metadata.get("render_fps") or _FPS) / spec.action_repeats
    finally:
        plain.close()
    if not draws and not _is_image(reading):
        raise BadLevel(
            f"{level_name} draws no pictures (rgb_array is not among its render_modes), and its "
            f"observations are none"
        )
    seen: list[np.ndarray] = []
    if not draws:
        reading = reading._replace(convert=_keeping(reading.convert, seen))
    playing = vector.Vector(spec, reading, opens, 1, seed)
    return Shown(
        playing, lambda: _rgb(made[-1].render() if draws else seen[-1], level_name), fps, names
    )


def _atari(spec: environments.EnvironmentSpec, game: Any, seed: int, names: list[str]) -> Shown:
    from impala_mm.environments import atari  # noqa: PLC0415

    twins: list[_Twins] = []

    def opens(game: Any, _: int) -> "_Twins":
        twins.append(_Twins(game))
        return twins[-1]

    playing = atari.Atari(spec, game, 1, seed, opens)
    return Shown(playing, lambda: twins[-1].picture, 60 / game.repeats, names)


class _Twins:
    """Two of Atari's vectors that play the same game: one for the agent, one in colour."""

    def __init__(self, game: Any):
        from impala_mm.environments import atari, atari_games  # noqa: PLC0415

        height, width = atari_games.screen(game.rom)
        self._seen = atari.open_vector(game, 1)
        self._drawn = atari.open_vector(game._replace(height=height, width=width), 1, grey=False)

    def reset(self, **how: Any) -> Any:
        """Both, alike."""
        self._keep(self._drawn.reset(**how)[0])
        return self._seen.reset(**how)

    def step(self, actions: np.ndarray) -> Any:
        """Both, alike."""
        self._keep(self._drawn.step(actions)[0])
        return self._seen.step(actions)

    def _keep(self, pictures: np.ndarray) -> None:
        self.picture = pictures[0, 0].copy()  # [E, 1, height, width, 3]


def _is_image(reading: spaces.Reading) -> bool:
    shape = reading.raw_shape
    return reading.dtype == np.uint8 and (
        len(shape) == 2 or (len(shape) == 3 and shape[2] in {1, 3})
    )


def _keeping(convert: Callable[[np.ndarray], np.ndarray] | None, seen: list[np.ndarray]) -> Any:
    """What reads observations and keeps the last of them as it came."""

    def read(raw: np.ndarray) -> np.ndarray:
        seen[:] = [raw.copy()]
        return convert(raw) if convert else raw

    return read


def _rgb(picture: Any, level_name: str) -> np.ndarray:
    """uint8 [H, W, 3], of a picture that may lack colours."""
    if picture is None:
        raise BadLevel(f"{level_name} says that it draws pictures, and drew none")
    picture = np.asarray(picture, np.uint8)
    if picture.ndim == 2:
        picture = picture[..., None]
    return np.broadcast_to(picture[..., :3], (*picture.shape[:2], 3))
