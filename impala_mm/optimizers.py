"""The old name of `impala_mm.algorithms.optimizers`; it works for one more version and warns."""

import warnings

from impala_mm.algorithms.optimizers import Adam, RMSProp, linear_decay, make

__all__ = ["Adam", "RMSProp", "linear_decay", "make"]
warnings.warn(
    "impala_mm.optimizers is now impala_mm.algorithms.optimizers; the old name will be removed in "
    "the next version",
    FutureWarning,
    stacklevel=2,
)
