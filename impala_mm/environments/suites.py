"""Suites: many levels by one name, in the kind of id that a run has learnt."""

import re

from impala_mm.environments.atari import scores

SUITES = ("atari57",)
_DEFAULT = "PongNoFrameskip-v4"
# What comes before a game's name in an id, and after it.
_KINDS = (re.compile(r"((?:\w+:)?ALE/)\w+(-v\d+)"), re.compile(r"()\w+(NoFrameskip-v\d+)"))


def suite_levels(name: str, like: str) -> list[str]:
    """The levels of a suite; `like` is the id of a game of the run's, if it has learnt any."""
    assert name in SUITES
    matches = [kind.fullmatch(level) for level in (like, _DEFAULT) for kind in _KINDS]
    before, after = next(match for match in matches if match).groups()
    return [f"{before}{_id_of_rom(rom)}{after}" for rom in scores.atari57_roms()]


def _id_of_rom(rom: str) -> str:
    """up_n_down is UpNDown in ids."""
    return "".join(part.capitalize() for part in rom.split("_"))
