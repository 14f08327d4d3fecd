"""The sources of a learner's batches, and the order in which they wrap each other.

    new unrolls of actors          `batch_source`: the queue, rounds, or turns
      the replay of --replay       `replay`, or the algorithm's own source: `own`
        recorded games             `recorded`: they come first, or beside the others

`make_sources` is this list; `learner.learner` reads the outermost one.
"""

from typing import NamedTuple

from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.learner.sources import replay
from impala_mm.learner.sources.batch_source import (
    BatchSource,
    QueueSource,
    RoundSource,
    TurnSource,
    UnrollQueue,
    turns_of_actor,
)
from impala_mm.learner.sources.own import BadSource, OwnSource
from impala_mm.learner.sources.recorded import PhasedSource
from impala_mm.learner.sources.replay import Position, RunOnHost
from impala_mm.replay.source import Turns
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
    run: RunOnHost,
    say: Say,
    turns: Turns | None = None,
) -> Sources:
    """Return the sources that the flags and the algorithm ask for.

    With --debug, the new unrolls are those of `turns`.
    """
    codec = UnrollCodec(algorithm.unroll)
    saved: OwnSource | None = None
    if server.rounds and not algorithm.rounds:  # those of --deterministic_run
        turns = turns_of_actor(server.rounds, server.queue)

    def make_fresh(device: str = "") -> BatchSource:
        """Return the source of new unrolls, on `device` if not where it is trained."""
        if turns:
            return TurnSource(turns, codec, config.batch_size, device)
        if server.rounds:
            return RoundSource(server.rounds, server.queue, codec, device)
        return QueueSource(server.queue, codec, config.batch_size, device)

    read: BatchSource
    if config.replay:  # algorithms with rounds of their own are refused
        queue = turns or UnrollQueue(server.queue)
        read = own = replay.make_own_source(
            config, algorithm, queue, position, run, process_rank(), say
        )
        saved = own if config.replay_save else None
    elif defines(algorithm.source):
        # It keeps new unrolls in main memory; what it returns is copied to the training device.
        try:
            read = saved = OwnSource(algorithm.source, make_fresh("/CPU:0"), algorithm.unroll)
        except BadSource as error:
            flags.refuse(f"--algorithm={config.algorithm}: {error}")
    else:
        read = make_fresh()
    phased = PhasedSource(read) if config.uses_recorded_games else None
    return Sources(phased or read, saved, phased)
