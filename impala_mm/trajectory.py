"""The old name of `impala_mm.data.trajectory`; it works for one more version, and says so."""

import warnings

from impala_mm.data.trajectory import Batch, Entry, Unroll, UnrollSpec

__all__ = ["Batch", "Entry", "Unroll", "UnrollSpec"]
warnings.warn(
    "impala_mm.trajectory is impala_mm.data.trajectory now; the old name goes with the next "
    "version",
    FutureWarning,
    stacklevel=2,
)
