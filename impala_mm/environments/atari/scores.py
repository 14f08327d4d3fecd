"""What a random player and a human get in 57 games of Atari, to measure an agent's returns by.

The numbers of scores.csv are the field's usual ones: mean raw returns over whole games that
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
    """Those of the game of this ROM; None where nobody measured them."""
    return _table().get(rom)


def atari57_roms() -> list[str]:
    """All 57."""
    return list(_table())
