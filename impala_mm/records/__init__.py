"""The records of a run: its folder, checkpoints, metrics, trackers, and the user's hooks.

Learners write them; evaluation, resumed runs and the plots of `sandbox/` read them. Modules of the
user add trackers by `register_tracker`. The package must import nothing above `data`, so that
records can be read without a learner, and this module no TensorFlow.
"""

from typing import Any

from impala_mm.config.registry import Registry

# Classes that are made without arguments, as `Tracker` in `tracking` describes them.
TRACKERS: Registry[type[Any]] = Registry(
    "tracker",
    {
        "wandb": "impala_mm.records.trackers:WandbTracker",
        "trackio": "impala_mm.records.trackers:TrackioTracker",
        "mlflow": "impala_mm.records.trackers:MlflowTracker",
    },
)
register_tracker = TRACKERS.register
