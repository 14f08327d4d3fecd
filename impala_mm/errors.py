"""The errors that impala_mm raises; all are subclasses of ImpalaError."""

from impala_mm.config.errors import (
    BadCheckpoint,
    BadEnvironment,
    BadSettings,
    ForeignPackage,
    ImpalaError,
    TrainingFailed,
)

__all__ = [
    "BadCheckpoint",
    "BadEnvironment",
    "BadSettings",
    "ForeignPackage",
    "ImpalaError",
    "TrainingFailed",
]
