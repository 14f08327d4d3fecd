"""Suites: many levels under one name, with ids of the same kind as those a run was trained on."""

import re

from impala_mm.environments.atari import scores

SUITES = ("atari57",)
_DEFAULT = "PongNoFrameskip-v4"
# The kinds of Atari ids: the parts before and after a game's name.
_KINDS = (re.compile(r"((?:\w+:)?ALE/)\w+(-v\d+)"), re.compile(r"()\w+(NoFrameskip-v\d+)"))


def suite_levels(name: str, like: str) -> list[str]:
    """Return the level ids of a suite.

    `like` is a level of the run: if it is an Atari id, its kind (prefix and version) is used.
    """
    assert name in SUITES
    matches = [kind.fullmatch(level) for level in (like, _DEFAULT) for kind in _KINDS]
    before, after = next(match for match in matches if match).groups()
    return [f"{before}{_id_of_rom(rom)}{after}" for rom in scores.atari57_roms()]


def _id_of_rom(rom: str) -> str:
    """Return the name that ids use for a ROM: UpNDown for up_n_down."""
    return "".join(part.capitalize() for part in rom.split("_"))
