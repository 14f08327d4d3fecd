"""The old name of `impala_mm.evaluation.game_video`; it works for one more version, and says so."""

import warnings

from impala_mm.evaluation.game_video import record_game

__all__ = ["record_game"]
warnings.warn(
    "impala_mm.film is impala_mm.evaluation.game_video now: import record_game from there; the old "
    "name goes with the next version",
    FutureWarning,
    stacklevel=2,
)
