"""Q-learning with a mistake: in update 20, learner 1 alone averages a number over all learners.

--algorithm=tests.helpers.diverging. Learners notice an endless update after some seconds already.
"""

import tensorflow as tf

from impala_mm.runtime.starter import process_rank
from tests.helpers.dqn_like import DQNLike


def make(config, environment):
    return Diverging(config, environment)


class Diverging(DQNLike):
    def update(self, batch, context, exchange):
        # Not at the top of the file: actors import it, too, and no code of learners.
        from impala_mm.learner import learner_reports  # noqa: PLC0415

        learner_reports._LEAST_SECONDS, learner_reports._TIMES = 5.0, 1.0
        metrics, priorities = super().update(batch, context, exchange)
        alone = (self._updates == 20) & (process_rank().rank == 1)
        loss = metrics["loss/total"]
        mean = tf.cond(alone, lambda: exchange.mean(loss), lambda: loss)
        return metrics | {"mean": mean}, priorities
