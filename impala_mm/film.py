"""The old name of `impala_mm.evaluation.game_video`; it works for one more version and warns."""

import warnings

from impala_mm.evaluation.game_video import record_game

__all__ = ["record_game"]
warnings.warn(
    "impala_mm.film is now impala_mm.evaluation.game_video: import record_game from there; the old "
    "name will be removed in the next version",
    FutureWarning,
    stacklevel=2,
)
