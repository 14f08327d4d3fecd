"""A check that all learners' variables are equal, bit for bit; rounding differences are repaired.

Each learner applies the same averaged gradient to equal variables, so they stay equal. On hardware
that rounds differently, or is faulty, they would drift apart unnoticed. `learner` calls
`check_variables` after the same update on all ranks, every --check_sync_every updates.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from impala_mm.data import variable_names
from impala_mm.distributed.group import LearnerGroup

_ROUNDING = 1e-4  # largest difference due to rounding, relative to a variable's largest value


class VariablesDiffer(Exception):
    """The learners' variables differ by more than rounding; the message names one."""


def check_variables(group: LearnerGroup, variables: Sequence[tf.Variable]) -> int:
    """Set variables that differ to rank 0's values, and return their number.

    Raise VariablesDiffer, on all ranks alike, if one differs by more than rounding.
    """
    values = [variable.numpy() for variable in variables]
    digests = group.gather([hashlib.sha256(v.tobytes()).digest() for v in values], "sync.digests")
    differing = [i for i in range(len(values)) if len({d[i] for d in digests}) > 1]
    if not differing:
        return 0
    theirs = group.gather([values[i] for i in differing] if group.rank == 0 else None, "sync.0")[0]
    distances = [_distance(values[i], right) for i, right in zip(differing, theirs, strict=True)]
    all_distances = group.gather(distances, "sync.distances")
    for place, i in enumerate(differing):
        distance, rank = max((d[place], rank) for rank, d in enumerate(all_distances))
        if distance > _ROUNDING:
            raise VariablesDiffer(
                f"{variable_names.of(variables[i])} of learner {rank} differs from learner 0's by "
                f"{distance:.1g} of its largest value: their updates are not the same"
            )
    for i, right in zip(differing, theirs, strict=True):
        variables[i].assign(right)
    return len(differing)


def _distance(value: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference relative to the largest value of `right`; NaN counts as inf."""
    mine, other = (np.asarray(x, np.float64) for x in (value, right))
    largest = np.abs(other).max(initial=0.0)
    distance = float(np.abs(mine - other).max(initial=0.0) / (largest or 1.0))
    return math.inf if math.isnan(distance) else distance
