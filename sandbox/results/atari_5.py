"""The median score of Atari's 57 games, estimated from five of them.

Aitchison et al. 2023, "Atari-5" (arXiv 2210.02019), fitted a regression to the published results of
many algorithms, most of them after 200 million frames, and missed the median by 10% in
cross-validation. After fewer frames it is too low (`sandbox/curves.md`). The weights are those of
the authors' programs; they follow from github.com/maitchison/Atari-5, dataset.csv.
"""

import math
import re
from collections.abc import Mapping

# By the name of a game in its ids: the weight of the logarithm of 1 + its score in percent.
WEIGHTS = {
    "BattleZone": 0.38197512,
    "DoubleDunk": 0.06790995,
    "NameThisGame": 0.31080415,
    "Phoenix": 0.12412619,
    "Qbert": 0.08048518,
}


def estimate_median(returns: Mapping[str, float]) -> float:
    """Return the estimate from mean returns by game; 0 is a random player and 1 a human."""
    from impala_mm.environments.atari import Atari57  # noqa: PLC0415 - it loads gymnasium

    exponent = 0.0
    for game, weight in WEIGHTS.items():
        low, high = Atari57.scores[re.sub(r"(?<=.)(?=[A-Z])", "_", game).lower()]
        percent = 100 * (returns[game] - low) / (high - low)
        exponent += weight * math.log10(1 + max(percent, 0.0))
    return (10**exponent - 1) / 100


def name_of(level: str) -> str:
    """Return the name of the game in an id such as ALE/Qbert-v5 or QbertNoFrameskip-v4."""
    return re.sub(r"^.*/|(NoFrameskip)?-v\d+$", "", level)
