"""Recorded games in Minari's format, both ways.

python -m impala_mm.teachers.minari_games export runs/c/recorded catch/expert-v0
python -m impala_mm.teachers.minari_games import catch/expert-v0 FOLDER --level_name=catch

Minari's data sets lie in the folder MINARI_DATASETS_PATH; none is downloaded. Other flags, such as
--full_action_space=true, are those of the level that was played.

An episode of T steps has T+1 observations, T actions as the environment takes them, T rewards, and
T terminations and truncations apart. Observations are exported as networks read them, a frame at a
time. An imported observation is either that, or what the environment returns, which is converted
as in training. An action beyond an environment's bounds is exported at the bound.
"""

import argparse
import contextlib
import importlib.util
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium import spaces

from impala_mm.algorithms.interface import entry_spec
from impala_mm.config import command_line
from impala_mm.config.errors import ImpalaError, UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments import action_parts, from_flags, nests
from impala_mm.environments.choices import ChoiceSpec
from impala_mm.environments.levels import MadeLevel
from impala_mm.environments.make import find_level
from impala_mm.environments.spaces import read_actions
from impala_mm.environments.types import EnvironmentSpec, Step
from impala_mm.evaluation import recording
from impala_mm.replay.data_set import About, DataSetWriter, read_about, unroll_spec
from impala_mm.replay.recorded_games import RecordedGames

_UNROLL_LENGTH = 20  # students may have any other


class BadGames(UserMistake):
    """Games that cannot be converted; the message says why."""


def export_games(folder: Path, name: str, **flags: Any) -> Any:
    """Write the games of a data set as Minari's data set `name`, and return that.

    `flags` are those of the level. Raises BadGames, and BadData if the folder holds no games.
    """
    minari = _minari()
    about = read_about(folder)
    config, spec, _ = _read_level({"level_name": about.level} | flags)
    unroll = unroll_spec(entry_spec(spec, ()), about.unroll_length)
    ours = recording.describe(spec, unroll, config)
    buffers = (
        _buffer(minari, game, spec)
        for game in _games(RecordedGames([folder], ours, unroll, print), unroll)
    )
    stored, first = _spaces(about.level, spec), next(buffers, None)
    if first is None:
        raise BadGames(f"{folder} has no game with a step")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an author and others that we do not know
        try:
            made = minari.create_dataset_from_buffers(
                name,
                [first],
                algorithm_name=about.policy or None,
                description=f"{about.episodes} games of {about.level}, recorded by impala_mm",
                jpeg_encoding=False,  # it would change what a student sees
                env=stored.environment,
                observation_space=stored.observations,
                action_space=stored.actions,
            )
        except ValueError as error:  # a bad name, or one that is taken
            raise BadGames(str(error)) from None
        made.storage.update_episodes(buffers)
    return minari.load_dataset(name)


class _Spaces(NamedTuple):
    """The environment as Minari stores it: itself, or else its spaces."""

    environment: Any
    observations: spaces.Space | None
    actions: spaces.Space | None


def _spaces(level: str, spec: EnvironmentSpec) -> _Spaces:
    """Return the environment if it observes what is recorded, or else the spaces of that."""
    alone = _Spaces(None, _space(spec.observation), _action_space(spec.actions.parts))
    try:
        environment = gymnasium.make(level)
    except Exception:  # gymnasium does not know it, or it is made with arguments
        return alone
    ours, theirs = alone.observations, environment.observation_space
    if not isinstance(ours, spaces.Box) or not isinstance(theirs, spaces.Box):
        return alone
    is_same = (ours.shape, ours.dtype.kind) == (theirs.shape, theirs.dtype.kind)
    return _Spaces(environment, None, None) if is_same else alone


def _space(spec: Any) -> spaces.Space:
    """Return the space of what networks read."""
    if isinstance(spec, dict):
        return spaces.Dict({key: _space(part) for key, part in spec.items()})
    if isinstance(spec, tuple):
        return spaces.Tuple([_space(part) for part in spec])
    if isinstance(spec, ChoiceSpec):
        return spaces.MultiDiscrete(np.array(spec.choices), np.int32)
    shape, dtype = tuple(spec.shape), spec.dtype.as_numpy_dtype
    if dtype == np.uint8:
        return spaces.Box(0, 255, shape, dtype)
    return spaces.Box(-np.inf, np.inf, shape, dtype)


def _action_space(parts: Any) -> spaces.Space:
    """Return the space that an environment's actions were read from."""
    match parts:
        case dict():
            return spaces.Dict({key: _action_space(part) for key, part in parts.items()})
        case tuple():
            return spaces.Tuple([_action_space(part) for part in parts])
        case action_parts.Discrete():
            return spaces.Discrete(parts.n, start=parts.start)
        case action_parts.MultiDiscrete():
            numbers, starts = (np.reshape(x, parts.shape) for x in (parts.n, parts.start))
            return spaces.MultiDiscrete(numbers, np.dtype(parts.dtype).type, start=starts)
        case action_parts.MultiBinary():
            return spaces.MultiBinary(parts.shape)
    dtype = np.dtype(parts.dtype)
    low, high = (np.reshape(np.array(x, dtype), parts.shape) for x in (parts.low, parts.high))
    return spaces.Box(low, high, parts.shape, dtype.type)


def _games(recorded: RecordedGames, unroll: Any) -> Iterator[Entry]:
    """Yield the entries [T+1, ...] of each game, the first of which is its reset."""
    length = unroll.length + 1
    entries = tf.nest.map_structure(
        lambda leaf: np.zeros([length, *leaf.shape], leaf.dtype.as_numpy_dtype), unroll.step
    )
    pieces: list[Entry] = []
    for window in range(len(recorded)):
        recorded.write(window, entries)
        # The first entry is the last one of the unroll before, or begins a stream by a reset.
        resets = np.flatnonzero(entries.first).tolist()
        places = sorted({0 if entries.first[0] else 1, *resets, length})
        for begin, end in itertools.pairwise(places):
            if entries.first[begin]:
                yield from _joined(pieces)
                pieces = []
            pieces.append(tf.nest.map_structure(lambda x, b=begin, e=end: x[b:e].copy(), entries))
    yield from _joined(pieces)


def _joined(pieces: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the game of these entries, if it has a step."""
    if sum(len(piece.first) for piece in pieces) > 1:
        yield tf.nest.map_structure(lambda *parts: np.concatenate(parts), *pieces)


def _buffer(minari: Any, game: Entry, spec: EnvironmentSpec) -> Any:
    """Return a game as Minari writes it."""
    played = tf.nest.map_structure(lambda part: part[1:], game.action)
    ends = game.terminated[1:].copy()
    ends[:-1] = False  # lives that were lost on the way
    actions = [
        part.to_environment(leaf)
        for part, leaf in zip(spec.actions.leaves, nests.flatten(played), strict=True)
    ]
    return minari.data_collector.EpisodeBuffer(
        observations=game.observation,
        actions=spec.actions.pack(actions),
        rewards=game.reward[1:],
        terminations=ends,
        truncations=game.truncated[1:],
        infos={},
    )


def import_games(name: str, folder: Path, **flags: Any) -> About:
    """Add the games of Minari's data set `name` to a folder, and return what lies there.

    `flags` are those of the level; level_name is that of Minari's environment if it is left out.
    Raises BadGames, and BadData if the folder cannot serve.
    """
    minari = _minari()
    try:
        found = minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        raise BadGames(
            f"{name} cannot be read: {error}; `minari list local` shows what is on this machine; "
            f"`minari download` gets others"
        ) from None
    if "level_name" not in flags and not found.env_spec:
        raise BadGames(f"{name} does not name its environment: give --level_name")
    known = {"level_name": found.env_spec.id} if found.env_spec else {}
    config, spec, level = _read_level(known | flags)
    theirs = read_actions(name, SimpleNamespace(action_space=found.action_space))
    if theirs != spec.actions:
        raise BadGames(
            f"{name} has actions {theirs.describe()}, and {config.level_name} takes "
            f"{spec.actions.describe()}: name the level that was played by --level_name"
        )
    unroll = unroll_spec(entry_spec(spec, ()), _UNROLL_LENGTH)
    about = recording.describe(spec, unroll, config, f"Minari's {name}")
    with contextlib.closing(DataSetWriter(folder, about)) as data:
        recording.add(recording.cut(_steps(found, spec, level, data), spec, unroll), data)
    return data.about


def _steps(
    found: Any, spec: EnvironmentSpec, level: Any, data: DataSetWriter
) -> Iterator[tuple[Step, Any]]:
    """Yield (step, action before it) of all games, and count these."""
    for episode in found.iterate_episodes():
        length = len(episode.rewards)
        seen = _observations(f"{found.id}, episode {episode.id}", episode.observations, spec, level)
        actions = _actions(episode.actions, spec)
        terminated = np.asarray(episode.terminations, bool)
        truncated = np.array(episode.truncations, bool)
        truncated[-1] |= not terminated[-1]  # where its recording was cut
        no, yes = np.array([False]), np.array([True])
        nothing = np.zeros(1, np.float32)
        yield Step(nothing, no, no, _row(seen, 0), first=yes, fault=no), None
        for t in range(length):
            reward = np.asarray(episode.rewards[t : t + 1], np.float32)
            ends = terminated[t : t + 1], truncated[t : t + 1]
            yield Step(reward, *ends, _row(seen, t + 1), first=no, fault=no), _row(actions, t)
        data.count(length, float(np.sum(episode.rewards)))


def _row(nest: Any, at: int) -> Any:
    """Return an element of each array as arrays [1, ...]."""
    return tf.nest.map_structure(lambda x: x[at : at + 1], nest)


def _actions(actions: Any, spec: EnvironmentSpec) -> Any:
    """Return an environment's actions [T, ...] as a policy's."""
    counted = [
        np.asarray(leaf, np.dtype(part.policy_dtype)) - _start(part)
        for part, leaf in zip(spec.actions.leaves, nests.flatten(actions), strict=True)
    ]
    ours = spec.actions.from_environment_units(spec.actions.pack(counted))
    return spec.actions.pack([np.asarray(leaf) for leaf in nests.flatten(ours)])


def _start(part: action_parts.Part) -> np.ndarray:
    """Return the environment's numbers of the choices 0; numbers and decisions begin at 0."""
    if isinstance(part, action_parts.Discrete | action_parts.MultiDiscrete):
        return np.reshape(part.start, part.shape).astype(part.policy_dtype)
    return np.zeros(part.shape, part.policy_dtype)


def _observations(name: str, raw: Any, spec: EnvironmentSpec, level: Any) -> Any:
    """Return observations [T+1, ...] as networks read them."""
    wanted, leaves = nests.flatten(spec.observation), nests.flatten(raw)
    if len(wanted) == len(leaves) and all(map(_is_read, leaves, wanted)):
        pairs = zip(leaves, wanted, strict=True)
        return nests.pack(spec.observation, [x.astype(s.dtype.as_numpy_dtype) for x, s in pairs])
    shapes = [f"{x.dtype} {list(x.shape[1:])}" for x in leaves]
    refusal = (
        f"{name} has observations {', '.join(shapes)}, and {spec.level_name} shows "
        f"{from_flags.describe_spaces(spec)['observations']}: name the level that was played by "
        f"--level_name"
    )
    if not isinstance(level, MadeLevel):
        raise BadGames(refusal)
    conversion = level.conversion().observation
    try:
        rows = [conversion.read(nests.row(raw, t)) for t in range(len(leaves[0]))]
    except (ValueError, TypeError, KeyError, IndexError):
        raise BadGames(refusal) from None
    return nests.pack(spec.observation, [np.stack(column) for column in zip(*rows, strict=True)])


def _is_read(raw: Any, spec: tf.TensorSpec) -> bool:
    """Return whether a network can read an array [T+1, ...] without a conversion."""
    kind = np.dtype(spec.dtype.as_numpy_dtype).kind
    return raw.shape[1:] == tuple(spec.shape) and raw.dtype.kind == kind


def _read_level(flags: dict[str, Any]) -> tuple[Config, EnvironmentSpec, Any]:
    """Return the config that these flags of a level make, its spec, and the level."""
    config, _ = command_line.parse_settings(flags, Config)
    level = find_level(config.level_name, **from_flags.environment_options(config))
    spec = level.spec()
    if nests.flatten(spec.masks):
        raise BadGames(f"{config.level_name} has masks of its actions, which Minari does not store")
    return config, spec, level


def _minari() -> Any:
    if not importlib.util.find_spec("minari"):
        raise BadGames("Minari is not installed: pip install 'impala_mm[minari]'")
    return importlib.import_module("minari")


def main(argv: Sequence[str] | None = None) -> None:
    """Convert what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ways = parser.add_subparsers(dest="way", required=True)
    for way, first, second in (("export", "folder", "name"), ("import", "name", "folder")):
        command = ways.add_parser(way)
        command.add_argument(first, help=f"the {first} of a data set")
        command.add_argument(second, help=f"the {second} of the other one")
    given, rest = parser.parse_known_args(argv)
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in rest)
    try:
        if given.way == "export":
            made = export_games(Path(given.folder), given.name, **flags)
            print(f"{made.id}: {made.total_episodes:,} episodes, {made.total_steps:,} steps")
            return
        about = import_games(given.name, Path(given.folder), **flags)
    except ImpalaError as error:
        sys.exit(f"error: {error}")
    print(f"{given.folder}: {about.contents}")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
