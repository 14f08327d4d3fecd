"""IMPALA whose `act` is wrong as the variable ACT says: --algorithm=tests.algorithms.broken_act."""

import os

import tensorflow as tf

from impala_mm.algorithms.impala.algorithm import Impala


def make(config, environment, setup):
    made = Impala(config, environment, setup)
    act, how = made.act, os.environ["ACT"]

    def broken(entry, core_state, exploration):
        action, core_state, extras = act(entry, core_state, exploration)
        if how == "outside":
            return action + 7, core_state, extras
        if how == "raises" or config.task == 0:
            tf.debugging.assert_greater(entry.reward, 5.0, "no such reward")
        return action, core_state, extras

    made.act = broken
    return made
