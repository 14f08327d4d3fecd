"""Recording of complete games into a data set: of a trained policy, or of a student's teacher.

    player chooses ---> environments step ---> UnrollWriter ---> data set

`jobs.record` and `teachers.playing` call this; `replay.data_set` says what is written. Games that
others have played are cut into unrolls by `cut`, and added by `add`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec, UnrollSpec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments import from_flags
from impala_mm.environments.faults import FaultLog
from impala_mm.environments.types import Environments, EnvironmentSpec, Step
from impala_mm.evaluation.games import GamePolicy, Unplayable, rebuild_broken
from impala_mm.evaluation.results import Game
from impala_mm.replay.data_set import About, DataSetWriter
from impala_mm.runtime.log import Say

_LINE_UNROLLS = 2_000  # unrolls between progress lines


def describe(spec: EnvironmentSpec, unroll: UnrollSpec, config: Config, policy: str = "") -> About:
    """Return the description of data that is recorded on a level, or that a student needs.

    `config` names the level, and which numbers its choices stand for.
    """
    spaces = from_flags.describe_spaces(spec)
    choices = flags.arguments(config, from_flags.choice_flags(config))
    return About(
        level=config.level_name,
        actions=spaces["actions"],
        observations=spaces["observations"],
        masks=bool(tf.nest.flatten(spec.masks)),
        frame_stack=spec.frame_stack,
        action_repeats=spec.action_repeats,
        unroll_length=unroll.length,
        layout=UnrollCodec(unroll).digest,
        policy=policy,
        choices=" ".join(choices),
        life_loss_ends=config.life_loss_ends if spec.emulator else None,
    )


class Played(NamedTuple):
    """The games that have been recorded so far."""

    games: list[Game]
    steps: int


def record(
    player: GamePolicy,
    environments: Environments,
    num_envs: int,
    unroll: UnrollSpec,
    data: DataSetWriter,
    is_enough: Callable[[int, int, int], bool],
    explore: bool,
    idle_steps: int = 0,
    meanwhile: Callable[[Played], bool] = lambda played: True,
    say: Say = lambda message: None,
) -> Played:
    """Play and record complete games, until each environment has played enough.

    `is_enough(environment, games, steps)` is asked when a game of an environment ends, with the
    games of this environment and the steps of all. Once `meanwhile` returns False, playing ends at
    once, and the games that are not complete lack their ends.
    """
    if environments.spec.agents > 1:
        raise Unplayable(
            f"{environments.spec.level_name} has {environments.spec.agents} agents that act at the "
            f"same time, and games are recorded of a single one"
        )
    streams = _Streams(environments, num_envs, unroll, data)
    played, games_of = Played([], 0), np.zeros(num_envs, np.int64)
    faults, idle = FaultLog(say), np.zeros(num_envs, np.int64)
    step, state = environments.reset(), player.initial_state(num_envs)
    actions = environments.spec.actions.zeros(num_envs)
    streams.begin(step)
    pending: list[tuple[int, float]] = []  # games whose ends are in unrolls not yet written
    while not streams.over.all() and meanwhile(played):
        step = rebuild_broken(environments, step, faults)
        entry = player.entry(step.observation, step.reward, actions, step.first, step.mask)
        actions, state, _ = player.step(entry, state, explore)
        step = environments.step(actions)
        idle = np.where((step.reward != 0) | step.first, 0, idle + 1)
        written = streams.add(step, actions)
        played = played._replace(steps=played.steps + int((~streams.over & ~step.first).sum()))
        for i, whole_game, episode_return, length, *_ in environments.episodes():
            if not whole_game or streams.over[i]:
                continue
            cut = idle_steps > 0 and step.truncated[i] and idle[i] >= idle_steps
            played.games.append(Game(episode_return, length, bool(cut)))
            pending.append((length, episode_return))
            games_of[i] += 1
            streams.over[i] = is_enough(i, int(games_of[i]), played.steps)
        if written:
            _count(pending, data)
    if streams.over.all():
        streams.fill()
        _count(pending, data)
    faults.say_counts(now=True)
    return played


def _count(games: list[tuple[int, float]], data: DataSetWriter) -> None:
    """Count games as parts of the data set, and forget them."""
    for steps, episode_return in games:
        data.count(steps, episode_return)
    games.clear()


def cut(
    steps: Iterable[tuple[Step, Any]], spec: EnvironmentSpec, unroll: UnrollSpec
) -> Iterator[bytes]:
    """Yield the unrolls of games in a row, as an actor's `UnrollWriter` makes them.

    `steps` are those of one environment, each with the action before it, a nest of [1, ...]; that
    of a reset is None. Entries after the last game are like resets.
    """
    writer = UnrollWriter(unroll, 1, ())
    nothing = spec.actions.zeros(1)
    step: Step | None = None
    begun = False
    partial = False  # whether the unroll has an entry that none before it has
    for step, action in steps:
        if not begun:
            begun = True
            writer.write_reset(step)
            writer.set_start_state([])
            continue
        partial = not writer.write(step, nothing if action is None else action, [])
        if not partial:
            yield from writer.take_unrolls()
            writer.set_start_state([])
    while partial and step:
        no, yes = np.array([False]), np.array([True])
        step = step._replace(reward=np.zeros(1, np.float32), terminated=no, truncated=no, first=yes)
        partial = not writer.write(step, nothing, [])
        if not partial:
            yield from writer.take_unrolls()


def add(unrolls: Iterable[bytes], data: DataSetWriter) -> None:
    """Add unrolls to a data set as a new stream, and print how far it is."""
    stream, data.next_stream = data.next_stream, data.next_stream + 1
    for at, content in enumerate(unrolls):
        data.add(stream, at, content)
        if at % _LINE_UNROLLS == _LINE_UNROLLS - 1:
            print(f"{data.about.episodes:,} games, {data.about.steps:,} steps", flush=True)


class _Streams:
    """The unrolls of environments that play, each a stream of the data set."""

    def __init__(
        self, environments: Environments, num_envs: int, unroll: UnrollSpec, data: DataSetWriter
    ):
        self._data, self._first = data, data.next_stream
        data.next_stream += num_envs
        self._writer = UnrollWriter(unroll, num_envs, ())
        self._codec = UnrollCodec(unroll)
        self._nothing = environments.spec.actions.zeros(num_envs)
        self._number = 0  # of the unroll in each stream
        self.over = np.zeros(num_envs, bool)  # environments whose games are complete
        # Environments whose unroll would begin with an entry of a fault.
        self._begins_broken = np.zeros(num_envs, bool)
        self._last: Step | None = None

    def begin(self, step: Step) -> None:
        """Begin all streams with the reset of the environments."""
        self._begins_broken = step.fault.copy()
        self._writer.write_reset(step)
        self._writer.set_start_state([])

    def add(self, step: Step, actions: Any) -> bool:
        """Write a step, and return whether it completed the unrolls that are in the data set now.

        After its last game, an environment shows resets.
        """
        over = self.over
        step = step._replace(
            reward=np.where(over, 0, step.reward),
            terminated=step.terminated & ~over,
            truncated=step.truncated & ~over,
            first=step.first | over,
        )
        self._last = step
        if not self._writer.write(step, actions, []):
            return False
        unbroken = self._writer.unbroken
        contents = self._writer.take_unrolls()
        for environment, content in zip(unbroken, contents, strict=True):
            if not self._begins_broken[environment] and not self._is_padding(content):
                self._data.add(self._first + environment, self._number, content)
        self._begins_broken = step.fault.copy()
        self._number += 1
        self._writer.set_start_state([])
        return True

    def _is_padding(self, content: bytes) -> bool:
        """Return whether an unroll has no step."""
        rows = np.frombuffer(content, np.uint8)[np.newaxis]
        return bool(self._codec.arrays(rows).entries.first[:, 1:].all())

    def fill(self) -> None:
        """Fill the last unroll of each stream."""
        assert self._last
        number = self._number
        while self._number == number:
            self.add(self._last._replace(fault=np.zeros_like(self.over)), self._nothing)
