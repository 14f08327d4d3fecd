"""The old name of `impala_mm.algorithms.optimizers`; it works for one more version, and says so."""

import warnings

from impala_mm.algorithms.optimizers import Adam, RMSProp, linear_decay, make

__all__ = ["Adam", "RMSProp", "linear_decay", "make"]
warnings.warn(
    "impala_mm.optimizers is impala_mm.algorithms.optimizers now; the old name goes with the next "
    "version",
    FutureWarning,
    stacklevel=2,
)
