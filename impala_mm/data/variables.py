"""An algorithm's variables, grouped by how they are used."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class BadVariables(Exception):
    """The groups of an algorithm's variables contradict each other; the message says how."""


class Variables(NamedTuple):
    """The variables of an algorithm, each of which is trained, carried or local.

    Those that are trained and carried are the same on all learners: rank 0's initial values are
    broadcast, and rank 0 saves them in the checkpoints.
    """

    trained: list[tf.Variable]  # the weights that gradients change
    # Everything else: target networks, normalisers, temperatures, optimizer slots, and the state of
    # a tf.random.Generator.
    carried: list[tf.Variable]
    acting: list[tf.Variable]  # those of the trained and carried variables that actors receive
    # Those of the carried variables that --mode=train_from loads, besides the trained ones and
    # those for acting: target networks, normalisers. Optimizer slots and counts are not among them.
    weights: Sequence[tf.Variable] | None = None
    # Those that say how far a schedule is, such as a teacher's cost: no weights, so that another
    # run begins them anew, and last among the carried ones, so that a run may be resumed without
    # them.
    schedules: Sequence[tf.Variable] = ()
    # Variables that differ between learners, such as statistics of a learner's own unrolls. They
    # are neither broadcast nor compared. Each learner saves its own, in a folder of its own.
    local: Sequence[tf.Variable] = ()

    @property
    def watched(self) -> list[tf.Variable]:
        """Those that must be finite after each update: actors receive them, or they are trained."""
        return list({id(v): v for v in [*self.trained, *self.acting]}.values())

    def check(self) -> None:
        """Raise BadVariables if a variable is in a group that excludes it."""
        trained, carried = ({id(v) for v in group} for group in (self.trained, self.carried))
        for variable in self.local:
            if id(variable) in trained | carried:
                raise BadVariables(
                    f"{variable.name} is local, and also trained or carried: a variable is either "
                    f"the same on all learners, or local"
                )
        for name, variables, known, of in (
            ("acting", self.acting, trained | carried, "trained or carried"),
            ("weights", self.weights or (), carried, "carried"),
        ):
            for variable in variables:
                if id(variable) not in known:
                    raise BadVariables(f"{variable.name} is among {name}, but it is not {of}")
