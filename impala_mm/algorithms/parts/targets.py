"""Target networks: copies of trained variables that change more slowly than these.

An algorithm makes the same network twice, copies the variables once, and lets the copy follow after
its optimizer's steps:

    targets.follow(self._target_variables, self._variables)              in make, and a copy later
    targets.follow(self._target_variables, self._variables, share=0.005)      in update
"""

from collections.abc import Sequence

import tensorflow as tf


def follow(
    targets: Sequence[tf.Variable], online: Sequence[tf.Variable], share: float | tf.Tensor = 1.0
) -> None:
    """Move each target by this share of the way to its online variable; 1 copies it exactly.

    A share of 0 leaves the targets unchanged, so a tensor may decide about a copy.
    """
    for target, variable in zip(targets, online, strict=True):
        kept = tf.cast(1.0 - share, target.dtype) * target
        target.assign(kept + tf.cast(share, target.dtype) * variable)
