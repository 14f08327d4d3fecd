"""Recording of complete games into a data set: of a trained policy, or of a student's teacher.

    player chooses ---> environments step ---> UnrollWriter ---> data set

`jobs.record` and `teachers.playing` call this; `replay.data_set` says what is written. Games that
others have played are cut into unrolls by `cut`, and added by `add`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec, UnrollSpec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments import from_flags
from impala_mm.environments.types import EnvironmentSpec, Step
from impala_mm.evaluation.games import Observer, Unplayable
from impala_mm.evaluation.results import Game
from impala_mm.replay.data_set import About, DataSetWriter

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


class Recorder(Observer):
    """The unrolls of environments that play, each a stream of the data set."""

    def __init__(self, spec: EnvironmentSpec, unroll: UnrollSpec, data: DataSetWriter):
        """Record games of environments of this spec; raise Unplayable if that is not possible."""
        if spec.agents > 1:
            raise Unplayable(
                f"{spec.level_name} has {spec.agents} agents that act at the same time, and games "
                f"are recorded of a single one"
            )
        self._spec, self._unroll, self._data = spec, unroll, data
        self._codec = UnrollCodec(unroll)
        self._number = 0  # of the unroll in each stream
        self._pending: list[Game] = []  # those whose ends are in unrolls not yet written

    def after_reset(self, step: Step) -> None:
        """Begin all streams with the reset of the environments."""
        count = len(step.first)
        self._first, self._data.next_stream = self._data.next_stream, self._data.next_stream + count
        self._writer = UnrollWriter(self._unroll, count, ())
        self._writer.write_reset(step)
        self._writer.set_start_state([])

    def after_step(
        self, step: Step, actions: Any, games: Mapping[int, Game], over: np.ndarray
    ) -> None:
        """Write a step, and count the games whose ends are in the data set now.

        After its last game, an environment shows resets. They fill the last unrolls.
        """
        was_over = over.copy()
        was_over[[*games]] = False
        complete = self._write(step, actions, was_over)
        self._pending += games.values()
        if over.all():
            step = step._replace(fault=np.zeros_like(over))
            nothing = self._spec.actions.zeros(len(over))
            while not complete:
                complete = self._write(step, nothing, over)
        if complete:
            for game in self._pending:
                self._data.count(game.length, game.episode_return)
            self._pending.clear()

    def _write(self, step: Step, actions: Any, over: np.ndarray) -> bool:
        """Write a step, and return whether the unrolls that it completed are in the data set."""
        step = step._replace(
            reward=np.where(over, 0, step.reward),
            terminated=step.terminated & ~over,
            truncated=step.truncated & ~over,
            first=step.first | over,
        )
        if not self._writer.write(step, actions, []):
            return False
        unbroken = self._writer.unbroken
        contents = self._writer.take_unrolls()
        for environment, content in zip(unbroken, contents, strict=True):
            if not self._is_padding(content):
                self._data.add(self._first + environment, self._number, content)
        self._number += 1
        self._writer.set_start_state([])
        return True

    def _is_padding(self, content: bytes) -> bool:
        """Return whether an unroll has no step."""
        rows = np.frombuffer(content, np.uint8)[np.newaxis]
        return bool(self._codec.arrays(rows).entries.first[:, 1:].all())


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
