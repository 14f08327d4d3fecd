"""Reference scores of a random player and a human in 57 Atari games, to normalise returns by.

The numbers in scores.csv are the ones usual in the field: mean raw returns over whole games that
begin with up to 30 no-ops and last at most 108,000 frames, by uniformly random play and by a
professional tester (Wang et al. 2016, arXiv 1511.06581, appendix; Mnih et al. 2015 for most).
"""

import csv
import functools
from pathlib import Path

from impala_mm.environments.types import ReferenceScores


@functools.cache
def _table() -> dict[str, ReferenceScores]:
    with Path(__file__).with_suffix(".csv").open(newline="") as file:
        return {
            row["rom"]: ReferenceScores(float(row["random"]), float(row["human"]))
            for row in csv.DictReader(file)
        }


def reference_scores(rom: str) -> ReferenceScores | None:
    """Return the scores for the game of this ROM; None if there are none."""
    return _table().get(rom)


def atari57_roms() -> list[str]:
    """Return the ROM names of the 57 games."""
    return list(_table())
