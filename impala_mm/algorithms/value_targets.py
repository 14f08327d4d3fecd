"""The old name of `impala_mm.algorithms.value_units`; it works for one more version and warns."""

import warnings

from impala_mm.algorithms.value_units import (
    NORMALIZATIONS,
    RewardUnit,
    RunningError,
    ValueUnit,
    errors,
    make_unit,
)

__all__ = ["NORMALIZATIONS", "RewardUnit", "RunningError", "ValueUnit", "errors", "make_unit"]
warnings.warn(
    "impala_mm.algorithms.value_targets is now impala_mm.algorithms.value_units; the old name will "
    "be removed in the next version",
    FutureWarning,
    stacklevel=2,
)
