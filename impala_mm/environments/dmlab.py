"""DeepMind Lab (arXiv 1612.03801): levels in three dimensions, as the suite `dmlab`.

`dmlab:rooms_watermaze` is a level of DMLab-30, and any other name is a path of the engine's, such
as `dmlab:tests/empty_room_test` or `dmlab:nav_maze_static_01`. sandbox/dmlab.md says how
`deepmind_lab`, which is no package of PyPI, is installed.

The scores in dmlab30.csv are those of the IMPALA paper (arXiv 1802.01561, table C.1): mean returns
of uniformly random play and of human players on the test levels. The literature compares returns of
the training levels with them, too.
"""

import csv
import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from impala_mm.environments import Suite
from impala_mm.environments.level_cache import LevelCache
from impala_mm.environments.levels import MadeLevel
from impala_mm.environments.types import BadLevel, MeasuredScores, Options, ReferenceScores

_FOLDER = "contributed/dmlab30/"
_FRAMES = 4  # of a step, unless --num_action_repeats says otherwise
_IMAGE, _INSTRUCTION = "RGB_INTERLEAVED", "INSTR"  # the engine's names of observations
_LONGEST = 500  # characters of an instruction; the space needs a number
# Turn (pixels a frame), look up, strafe, walk, fire, jump, crouch.
ACTIONS = {
    "forward": (0, 0, 0, 1, 0, 0, 0),
    "backward": (0, 0, 0, -1, 0, 0, 0),
    "strafe left": (0, 0, -1, 0, 0, 0, 0),
    "strafe right": (0, 0, 1, 0, 0, 0, 0),
    "look left": (-20, 0, 0, 0, 0, 0, 0),
    "look right": (20, 0, 0, 0, 0, 0, 0),
    "forward, look left": (-20, 0, 0, 1, 0, 0, 0),
    "forward, look right": (20, 0, 0, 1, 0, 0, 0),
    "fire": (0, 0, 0, 0, 1, 0, 0),
}
# The levels that training does not see are other draws of the engine's random numbers.
_HELD_OUT = {"allowHoldOutLevels": "true", "mixerSeed": str(0x600D5EED)}

with Path(__file__).with_name("dmlab30.csv").open(newline="") as _file:
    _SCORES = {
        row["level"]: MeasuredScores(float(row["random"]), float(row["human"]))
        for row in csv.DictReader(_file)
    }
# Two levels have another variant for training.
_TRAINED = {level.replace("_test", "_train"): scores for level, scores in _SCORES.items()}


class DeepMindLab(gymnasium.Env):
    """A level of DeepMind Lab.

    Observations: the image uint8 [height, width, 3]; with `instruction`, a dict of the image and
    the text that tells the agent what to do, which is empty in most levels. Actions: those of
    ACTIONS. The engine shows no observation after an episode, so the last one is repeated; an
    episode counts as terminated, as in the literature, although it is a time that ends most.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012

    def __init__(
        self,
        level: str,
        frames: int,
        width: int = 96,
        height: int = 72,
        instruction: bool = True,
        held_out: bool = False,
        level_cache: str = "",
        renderer: str = "software",
        runfiles: str = "",
        config: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ):
        """Open a level by its path; each step lasts `frames` frames of the engine.

        `held_out` plays what training does not see. `level_cache` is the folder of a `LevelCache`.
        `renderer` may be "hardware", for a GPU, and `runfiles` the folder of the engine's files.
        `config` has further settings of the engine or the level.
        """
        import deepmind_lab  # noqa: PLC0415

        self.frames_per_step, self.render_mode = frames, render_mode
        self._names = [_IMAGE, *[_INSTRUCTION] * instruction]
        settings = {"width": width, "height": height, "logLevel": "WARN", **(config or {})}
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}
        if runfiles:
            deepmind_lab.set_runfiles_path(runfiles)
        try:
            self._lab = deepmind_lab.Lab(
                level,
                self._names,
                config=texts | (_HELD_OUT if held_out else {}),
                renderer=renderer,
                level_cache=LevelCache(level_cache) if level_cache else None,
            )
        except RuntimeError as error:
            raise gymnasium.error.Error(f"DeepMind Lab answers: {error}") from error
        image = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
        text = gymnasium.spaces.Text(_LONGEST, min_length=0)
        space = gymnasium.spaces.Dict(image=image, instruction=text)
        self.observation_space = space if instruction else image
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self._actions = np.array(list(ACTIONS.values()), np.intc)  # [9, 7]
        self._seen: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict]:
        """Start an episode, whose map and objects the engine draws by a seed of ours."""
        super().reset(seed=seed)
        self._lab.reset(seed=int(self.np_random.integers(2**31 - 1)))
        return self._look(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        """Repeat an action for the frames of a step."""
        reward = self._lab.step(self._actions[action], num_steps=self.frames_per_step)
        return self._look(), reward, not self._lab.is_running(), False, {}

    def render(self) -> np.ndarray:
        """Return what the agent sees."""
        return self._seen[_IMAGE]

    def close(self) -> None:
        """End the engine."""
        self._lab.close()

    def get_action_meanings(self) -> list[str]:
        """Return the actions' names."""
        return list(ACTIONS)

    def _look(self) -> Any:
        if self._lab.is_running():
            self._seen = self._lab.observations()
        if _INSTRUCTION not in self._names:
            return self._seen[_IMAGE]
        return {"image": self._seen[_IMAGE], "instruction": self._seen[_INSTRUCTION]}


class LabLevel(MadeLevel):
    """A level whose environments repeat actions themselves, and draw images of the size asked."""

    def __init__(self, name: str, path: str, options: Options, scores: ReferenceScores | None):
        sizes = {"width": options.width, "height": options.height}
        chosen: dict[str, Any] = {side: size for side, size in sizes.items() if size}
        frames = options.num_action_repeats or _FRAMES
        make = functools.partial(DeepMindLab, path, frames, **chosen)
        super().__init__(name, make, options, scores=scores)

    @property
    def repeats(self) -> int:
        """The number of frames of a step."""
        return self._options.num_action_repeats or _FRAMES


class DMLab(Suite):
    """The levels of DMLab-30, and all others that the engine finds."""

    levels: Sequence[str] = tuple(_SCORES)
    scores: Mapping[str, ReferenceScores] = _TRAINED | _SCORES

    def trained_names(self, name: str) -> list[str]:
        """Return the names of the training levels."""
        return [f"{name}:{level}" for level in _TRAINED]

    def find(self, level: str, level_name: str, options: Options) -> LabLevel:
        """Return the level; raise BadLevel if the engine is not installed."""
        if importlib.util.find_spec("deepmind_lab") is None:
            raise BadLevel(
                f"{level_name} needs deepmind_lab, which pip does not find: sandbox/dmlab.md says "
                f"how it is built and installed"
            )
        if not level:
            raise BadLevel(f"{level_name} names no level: write dmlab:rooms_watermaze")
        path = f"{_FOLDER}{level}" if level in self.scores else level
        return LabLevel(level_name, path, options, self.scores.get(level))
