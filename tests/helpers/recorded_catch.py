"""Games of catch, recorded by random actions or by a function, for students' tests.

`terminations` counts those of any data set, and `rewrite` changes one as a stranger might.
"""

import functools

import numpy as np

from impala_mm.algorithms.interface import entry_spec
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.evaluation import recording
from impala_mm.evaluation.games import play_games
from impala_mm.policy.core import make_entry
from impala_mm.replay import unroll_files
from impala_mm.replay.data_set import DataSetWriter, files, intact, read_about, unroll_spec
from impala_mm.replay.store import pack, unpack


class FunctionPlayer:
    """A player whose actions are those of a function of observations; None: random ones."""

    def __init__(self, spec, function=None):
        self._spec, self._function = spec, function
        self._random = np.random.default_rng(1)

    def initial_state(self, batch):
        return 0

    def entry(self, *fields):
        return make_entry(self._spec, *fields)

    def step(self, entry, state, explore):
        if self._function:
            return self._function(entry.observation.numpy()).astype(np.int32), state, ()
        return self._random.integers(0, 3, len(entry.first)).astype(np.int32), state, ()


def record_catch(folder, games, length, function=None, num_envs=3):
    """Record that many games of each environment; return the description of the data."""
    make_player = functools.partial(FunctionPlayer, function=function)
    return record_games("catch", make_player, folder, games, length, num_envs)


def record_games(level, make_player, folder, games, length, num_envs):
    """Record that many games of each environment of a level, by `make_player(spec)`."""
    environments = make_environments(level, num_envs, 5)
    unroll = unroll_spec(entry_spec(environments.spec, ()), length)
    config = Config(level_name=level)
    data = DataSetWriter(folder, recording.describe(environments.spec, unroll, config, "test"))
    play_games(
        *(make_player(environments.spec), environments),
        lambda environment, of_it, steps: of_it >= games,
        explore=True,
        observer=recording.Recorder(environments.spec, unroll, data),
    )
    data.close()
    environments.close()
    return data.about


def rewrite(folder, change):
    """Let `change` alter the entries of each unroll of a data set; checksums agree afterwards."""
    about = read_about(folder)
    codec = UnrollCodec(unroll_spec(entry_spec(level_spec(about.level), ()), about.unroll_length))
    for path in files(folder):
        unrolls = []
        for number, unroll in enumerate(unroll_files.read(path)):
            rows = np.frombuffer(unpack(unroll.content, codec.size), np.uint8)[np.newaxis].copy()
            change(number, codec.arrays(rows).entries)
            unrolls.append(unroll._replace(content=pack(rows.tobytes())))
        path.write_bytes(unroll_files.encode(unrolls))


def terminations(folder):
    """Return how many steps of a data set are terminations."""
    about = read_about(folder)
    spec = level_spec(about.level)
    codec = UnrollCodec(unroll_spec(entry_spec(spec, ()), about.unroll_length))
    found = 0
    for path in files(folder):
        for unroll in intact(path):
            rows = np.frombuffer(unpack(unroll.read(), codec.size), np.uint8)[np.newaxis]
            found += int(codec.arrays(rows).entries.terminated[:, 1:].sum())
    return found
