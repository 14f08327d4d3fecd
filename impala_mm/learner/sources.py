"""The sources of a learner's batches, and the order in which they wrap each other.

    new unrolls of actors          `batch_source`: the queue, rounds, or turns
      the replay of --replay       `replay_source`, or the algorithm's own source: `own_source`
        recorded games             `offline_source`: they come first, or beside the others

`make_sources` is this list; `learner.learner` reads the outermost one.
"""

from typing import NamedTuple

from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.learner import replay_source
from impala_mm.learner.batch_source import (
    BatchSource,
    PlayedHere,
    QueueSource,
    RoundSource,
    TurnQueue,
    TurnSource,
    UnrollQueue,
)
from impala_mm.learner.offline_source import PhasedSource
from impala_mm.learner.own_source import BadSource, OwnSource
from impala_mm.learner.replay_source import Position, Run
from impala_mm.runtime import devices
from impala_mm.runtime.log import Say
from impala_mm.runtime.starter import process_rank
from impala_mm.transport.server import Server


class Sources(NamedTuple):
    """The sources that a learner knows."""

    read: BatchSource  # what it reads
    saved: OwnSource | None  # what is saved with its own state, if it can be
    phased: PhasedSource | None  # what `phases` gives recorded games, if they are used


def make_sources(
    config: Config,
    algorithm: Algorithm,
    server: Server,
    position: Position,
    run: Run,
    say: Say,
    played: PlayedHere | None = None,
) -> Sources:
    """Return the sources that the flags and the algorithm ask for.

    With --debug, the new unrolls are those of `played`.
    """
    saved: OwnSource | None = None
    read: BatchSource
    if config.replay:
        codec = UnrollCodec(algorithm.unroll)
        queue: UnrollQueue | TurnQueue | PlayedHere = played or UnrollQueue(server.queue)
        if server.rounds:  # of --deterministic_run: algorithms with rounds of their own are refused
            queue = TurnQueue(server.rounds, server.queue)
        read = own = replay_source.make_own_source(
            config, algorithm, queue, codec, position, run, process_rank(), say
        )
        saved = own if config.replay_save else None
    elif defines(algorithm.source):
        read = saved = _make_own(
            config, algorithm, _make_fresh(config, algorithm, server, played, "/CPU:0")
        )
    else:
        read = _make_fresh(config, algorithm, server, played)
    phased = PhasedSource(read) if config.uses_recorded_games else None
    return Sources(phased or read, saved, phased)


def _make_fresh(
    config: Config,
    algorithm: Algorithm,
    server: Server,
    played: PlayedHere | None,
    device: str = "",
) -> BatchSource:
    """Return the source of new unrolls, on `device` if not where it is trained.

    An own source keeps them in main memory; what it returns is copied to the training device.
    """
    codec, rounds = UnrollCodec(algorithm.unroll), server.rounds
    if played:
        return TurnSource(played, codec, config.batch_size, device)
    if rounds and algorithm.rounds:
        return RoundSource(rounds, server.queue, codec, device)
    if rounds:  # those of --deterministic_run
        return TurnSource(TurnQueue(rounds, server.queue), codec, config.batch_size, device)
    return QueueSource(server, codec, config.batch_size, device)


def _make_own(config: Config, algorithm: Algorithm, fresh: BatchSource) -> OwnSource:
    """Return the algorithm's own source, around this one."""
    try:
        return OwnSource(algorithm.source, fresh, algorithm.unroll, devices.training_device())
    except BadSource as error:
        flags.refuse(f"--algorithm={config.algorithm}: {error}")
