"""Opponents of an actor with a network: its newest policy, and policies that it had earlier.

`environments/opponents.py` draws them for each game. The actor keeps its pool of past policies
itself, from the parameters that it pulls, so that nothing more is sent. It begins with the run's
checkpoints, if it sees their folder. Each group of environments has a pool of its own, since groups
may step in threads.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.actor.acting import Act
from impala_mm.config.environment_flags import PAST, RANDOM, SELF
from impala_mm.data.trajectory import Entry
from impala_mm.data.variables import Variables
from impala_mm.environments.opponents import (
    DrawnOpponents,
    PastPolicies,
    Player,
    RememberingPlayer,
)
from impala_mm.environments.turns import TurnVector
from impala_mm.environments.types import Step


class OpponentSettings(NamedTuple):
    """The players against the policies of an actor."""

    weights: Mapping[str, float]  # of --opponents, by name
    load: Callable[[str, int], Player]  # (name, entries) -> a player that is not this policy
    seed: int
    # Load what the run has saved into the variables, the oldest first, and yield each version.
    restore_past: Callable[[Variables], Iterable[int]] = lambda variables: ()


class PolicyOpponents:
    """The opponents of a group of environments, of which some are this actor's policies."""

    def __init__(
        self,
        environments: TurnVector,
        act: Act,
        state: list[Any],
        settings: OpponentSettings,
        group: int,
    ):
        """Play against `environments`, by `act` for all of their opponents' entries [R, ...].

        `state` is the core state of R games, and `group` the group's number.
        """
        rows, weights = len(environments.asked.reward), settings.weights
        self._act, self._state = act, state
        self._keeps_past = PAST in weights
        self._past = PastPolicies()
        self._newest = self._player(act.frozen())
        players: dict[str, Player] = {SELF: self._newest, RANDOM: environments.random}
        for name in weights.keys() - {PAST, *players}:
            players[name] = settings.load(name, rows)
        self._number = [tf.zeros([rows], tf.int32), tf.constant(1)]
        self._others = environments.spec.seats - 1
        environments.opponents = DrawnOpponents(
            weights, players, [settings.seed, group], self._past, self._others
        )

    def renew(self, version: int) -> None:
        """Play by the policy of this version from now on, and keep it if it is time for that."""
        act = self._act.frozen()
        self._newest.choose = self._player(act).choose
        if self._keeps_past:
            self._past.offer(version, lambda: self._player(act))

    def number(self, own: np.ndarray, bound: int) -> None:
        """Give the entries the numbers of their environments in the run."""
        self._number = [tf.constant(np.repeat(own, self._others)), tf.constant(bound)]

    def _player(self, act: Act) -> RememberingPlayer:
        def choose(asked: Step, actions: Any, state: list[Any]) -> tuple[Any, list[Any]]:
            seen, mask = asked.observation, asked.mask
            entry = Entry(actions, asked.reward, None, None, seen, asked.first, None, mask)
            chosen, after, _ = act(entry, state, self._number)
            return chosen, after

        return RememberingPlayer(choose, self._state)
