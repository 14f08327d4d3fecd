"""The old name of `impala_mm.data.trajectory`; it works for one more version and warns."""

import warnings

from impala_mm.data.trajectory import Batch, Entry, Unroll, UnrollSpec

__all__ = ["Batch", "Entry", "Unroll", "UnrollSpec"]
warnings.warn(
    "impala_mm.trajectory is now impala_mm.data.trajectory; the old name will be removed in the "
    "next version",
    FutureWarning,
    stacklevel=2,
)
