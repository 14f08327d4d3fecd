"""Descriptions of the metrics of learning values of actions: DQN, R2D2 and SAC."""

from impala_mm.records.learning_metrics import MetricDescription as _M
from impala_mm.records.learning_metrics import MetricGroup

VALUES = MetricGroup(
    "Values of actions",
    {
        "q/error": _M(
            "reward, or rescaled reward",
            "Mean absolute error of the values of the actions that were played (after "
            "`--value_rescaling`, if that is given).",
            "falling, though it grows with the returns",
        ),
        "q/value": _M(
            "reward",
            "Mean value of the best action (DQN, R2D2), or of the action that was played (SAC).",
            "near the discounted returns; far above them, values are overestimated",
        ),
        "epsilon": _M(
            "share of actions, 0 to 1",
            "Share of random actions, with `--epsilon_schedule=decay`.",
        ),
    },
)
