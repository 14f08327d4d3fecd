"""Atari games, emulated and preprocessed in C++ by ale_py, and the suite of 57 that have scores.

The suite `gymnasium` finds their ids; this one adopts those that the C++ vector plays. Apart from
`environments` and `runtime`, this package must import nothing of the library. This file imports
neither ale_py, which may be missing, nor TensorFlow.

The numbers in scores.csv are the ones usual in the field: mean raw returns over whole games that
begin with up to 30 no-ops and last at most 108,000 frames, by uniformly random play and by a
professional tester (Wang et al. 2016, arXiv 1511.06581, appendix; Mnih et al. 2015 for most).
"""

import csv
import importlib.util
import re
from pathlib import Path
from typing import Any

import gymnasium

from impala_mm.environments import Level, Suite
from impala_mm.environments.types import MeasuredScores, Options

with (Path(__file__).parent / "scores.csv").open(newline="") as _file:
    _SCORES = {  # by the name of the ROM
        row["rom"]: MeasuredScores(float(row["random"]), float(row["human"]))
        for row in csv.DictReader(_file)
    }
_DEFAULT = "PongNoFrameskip-v4"
# The kinds of Atari ids: the parts before and after a game's name.
_KINDS = (re.compile(r"((?:\w+:)?ALE/)\w+(-v\d+)"), re.compile(r"()\w+(NoFrameskip-v\d+)"))
if importlib.util.find_spec("ale_py"):
    import ale_py

    gymnasium.register_envs(ale_py)
    for _version, _sticky in ((0, 0.25), (4, 0.0)):  # ale_py registers only the v5 of this game
        gymnasium.register(
            f"SurroundNoFrameskip-v{_version}",
            "ale_py.env:AtariEnv",
            kwargs=gymnasium.registry["ALE/Surround-v5"].kwargs
            | {"repeat_action_probability": _sticky, "frameskip": 1},
        )


class Atari57(Suite):
    """The 57 games that have reference scores, under the ids that gymnasium has for them."""

    levels = tuple(_SCORES)
    scores = _SCORES

    def adopt(self, level_name: str, registered: Any, options: Options) -> Level | None:
        """Return the game of an id; None if the C++ vector cannot play it."""
        if registered.entry_point != "ale_py.env:AtariEnv":
            return None
        from impala_mm.environments.atari import vector  # noqa: PLC0415

        game = vector.read_game(level_name, registered, options)
        return vector.AtariLevel(game, self.scores.get(game.rom)) if game else None

    def level_names(self, name: str, like: str) -> list[str]:
        """Return the ids of all games, of the kind (prefix and version) of `like`, if it is one."""
        matches = [kind.fullmatch(level) for level in (like, _DEFAULT) for kind in _KINDS]
        before, after = next(match for match in matches if match).groups()
        # UpNDown in ids is up_n_down as a ROM.
        ids = ["".join(part.capitalize() for part in rom.split("_")) for rom in self.levels]
        return [f"{before}{id_}{after}" for id_ in ids]
