"""Guidance by a teacher that acts in the actors: the share of it that remains (JSRL, 2204.02372).

At the start of an episode, the teacher acts for up to --guide_steps steps, and --guide_share of the
later ones. Both fall to 0 in a line, so that the student takes over from the end of an episode
towards its beginning. `actor.guide` has what an actor does; the share is a variable that actors
receive with the parameters, and that checkpoints contain.
"""

from typing import Any

import tensorflow as tf

from impala_mm.algorithms import optimizers
from impala_mm.algorithms.distillation import last_frame
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.teacher_settings import TeacherSettings


def make(
    config: TeacherSettings, distribution: Any, records_policy: bool = False
) -> "Guidance | None":
    """Return the guidance that the flags ask for; the arguments are those of `Guidance`."""
    return Guidance(config, distribution, records_policy) if config.guides else None


class Guidance:
    """The share of --guide_steps and --guide_share that remains."""

    def __init__(self, config: TeacherSettings, distribution: Any, records_policy: bool):
        """Begin with the whole share.

        `distribution` is that of the student's actions, of which a teacher answers with parameters.
        `records_policy`: the first of the algorithm's extras are the parameters of the policy that
        acts, which are then the teacher's where it acts.
        """
        self.config, self.distribution = config, distribution
        self.records_policy = records_policy
        self.share = tf.Variable(1.0, trainable=False, name="guide_share")
        self.variables = [self.share]  # carried, and received by actors

    def begin_update(self, context: Context) -> dict[str, tf.Tensor]:
        """Set the share of this update, and return its metrics."""
        last = last_frame(self.config, context)
        # The least so far: with more frames planned, a resumed run does not get its guide back.
        share = tf.minimum(self.share, optimizers.linear_decay(1.0, context.frames, last))
        return {"guidance": self.share.assign(share)}
