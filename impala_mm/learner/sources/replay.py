"""The replay that --replay asks for, as the source of a learner's batches.

`replay` knows neither flags nor TensorFlow's queues nor algorithms; this module connects them.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, defines
from impala_mm.config import flags, replay_mix
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, UnrollCodec
from impala_mm.learner.sources.batch_source import UnrollQueue, decode_batch
from impala_mm.learner.sources.own import OwnSource
from impala_mm.replay.mixer import Columns, Mixer, RateLimiter
from impala_mm.replay.samplers import ComparedFeatures, Measures, SamplerSetup, make_replay
from impala_mm.replay.source import ReplaySource, Turns
from impala_mm.replay.spill import Owner, Spill, folder_of, stored_bytes
from impala_mm.replay.store import StoredUnroll, unpack
from impala_mm.runtime import devices, machine
from impala_mm.runtime.log import Say
from impala_mm.runtime.starter import ProcessRank


class Position(NamedTuple):
    """The learner's position in the run, as functions."""

    updates: Callable[[], int]
    progress: Callable[[], float]  # share of --total_environment_frames, 0 to 1


class RunOnHost(NamedTuple):
    """The run that a replay belongs to."""

    folder: Path
    is_new: bool  # it has not been started before


def make_own_source(
    config: Config,
    algorithm: Algorithm,
    queue: UnrollQueue | Turns,
    position: Position,
    run: RunOnHost,
    here: ProcessRank,
    say: Say,
) -> OwnSource:
    """Return the source as the training loop uses it; print what it will hold, or refuse it."""
    codec, most = UnrollCodec(algorithm.unroll), memory(config, here)
    refuse_little_memory(config, codec, most)
    for line in describe(config, codec, most) if here.rank == 0 else []:
        say(line)
    for line in _unused_spills(config, here) if here.local_rank == 0 else []:
        say(line)

    def make(queue: UnrollQueue | Turns) -> ReplaySource:
        return make_source(config, algorithm, queue, position, run, here, say)

    try:
        return OwnSource(make, queue, algorithm.unroll)
    except UserMistake as error:
        flags.refuse(f"--replay_spill={config.replay_spill}: {error}")


def memory(config: Config, here: ProcessRank) -> float:
    """Return the bytes that this learner's replay may take."""
    if config.replay_max_gb != flags.AUTO:
        return config.replay_max_gb * 1e9
    if not config.replay_spill:
        return _half_of_memory(here)
    spill = _spill_folder(config)
    free = shutil.disk_usage(next(p for p in (spill, *spill.parents) if p.exists())).free
    # What an earlier start left counts as free, or the replay would shrink with each start.
    stored = stored_bytes(spill)
    reused = sum(stored.get(folder_of(spill, rank), 0) for rank in range(here.size))
    return (free + reused) / 2 / here.local_size


def _half_of_memory(here: ProcessRank) -> float:
    """Return the bytes of memory that this learner's replay may take."""
    return machine.memory_bytes() / 2 / here.local_size


def _spill_folder(config: Config) -> Path:
    return Path(config.replay_spill).absolute()


def refuse_little_memory(config: Config, codec: UnrollCodec, most_bytes: float) -> None:
    """Refuse bytes of which a replay's share has no room for a batch."""
    mix = replay_mix.parse(config.replay)
    batch_bytes = config.batch_size * codec.size
    for part, share in zip(mix.replays, _memory_shares(mix, most_bytes), strict=True):
        if share < batch_bytes:
            capacity = sum(each.capacity for each in mix.replays)
            least = math.ceil(batch_bytes * capacity / part.capacity / 1e6) / 1e3
            given = f"{config.replay_max_gb:g}"
            if config.replay_max_gb == flags.AUTO:
                place = config.replay_spill
                given = f"auto (half of what {place} has free)" if place else "auto"
            flags.refuse(
                f"--replay_max_gb={given}: {part.name} has room for "
                f"{int(share / codec.size):,} unrolls before compression, less than "
                f"--batch_size={config.batch_size}: give at least {least:g}"
            )


def _unused_spills(config: Config, here: ProcessRank) -> list[str]:
    """Return a line for each folder of a learner that an earlier start had and this one lacks."""
    if not config.replay_spill:
        return []
    spill = _spill_folder(config)
    used = {folder_of(spill, rank) for rank in range(here.size)}
    return [
        f"replay: {folder} has {size / 1e6:,.1f} MB of a learner that this start, of {here.size}, "
        f"does not have: they are not used; delete them, or start as many learners as before"
        for folder, size in sorted(stored_bytes(spill).items())
        if folder not in used
    ]


def describe(config: Config, codec: UnrollCodec, most_bytes: float) -> list[str]:
    """Return what each replay will hold, in words; all together take up to `most_bytes`."""
    mix = replay_mix.parse(config.replay)
    columns = replay_mix.split_columns(mix, config.batch_size)
    shares = _memory_shares(mix, most_bytes)
    return [
        f"replay: {number} of a batch's {config.batch_size} unrolls are drawn from {part.name}, "
        f"which holds up to {part.capacity:,} unrolls ({part.capacity * config.unroll_length:,} "
        f"steps, {part.capacity * codec.size / 1e6:,.1f} MB before compression), or "
        f"{most / 1e6:,.1f} MB"
        for part, number, most in zip(mix.replays, columns[1:], shares, strict=True)
    ]


def make_source(
    config: Config,
    algorithm: Algorithm,
    queue: UnrollQueue | Turns,
    position: Position,
    run: RunOnHost,
    here: ProcessRank,
    say: Say,
) -> ReplaySource:
    """Return the source of batches; raise UserMistake if --replay_spill cannot be used.

    If that cannot be written any more, the replays take half of the memory.
    """
    codec, mix = UnrollCodec(algorithm.unroll), replay_mix.parse(config.replay)
    columns = replay_mix.split_columns(mix, config.batch_size)
    ratio = replay_mix.updates_per_unroll(mix, config.batch_size, config.replay_ratio)
    minimum = max(config.replay_min or config.batch_size, columns[0])
    random = np.random.default_rng([config.seed, here.rank])
    compares = mix.who_need("features")
    measures = _make_measures(algorithm, codec, position) if compares else None
    shares = _memory_shares(mix, memory(config, here))
    mixer = Mixer(
        codec,
        [
            make_replay(SamplerSetup(part, share, random, measures))
            for part, share in zip(mix.replays, shares, strict=True)
        ],
        columns,
        RateLimiter(ratio, minimum),
        config.replay_overflow,
        position.progress,
        algorithm.unroll.overlap,
        say,
    )
    return ReplaySource(
        queue,
        mixer,
        _make_decode(codec),
        _make_spill(config, codec, max(part.capacity for part in mix.replays), here.rank, run, say),
        _make_first_priorities(algorithm, codec, mix),
        _half_of_memory(here),
    )


def _make_first_priorities(
    algorithm: Algorithm, codec: UnrollCodec, mix: replay_mix.Mix
) -> Callable[[Sequence[bytes]], np.ndarray] | None:
    """Return the function from unrolls to their first priorities, if it is needed and known."""
    if not (defines(algorithm.first_priorities) and mix.who_need("priorities")):
        return None

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def judge_contents(contents: tf.Tensor) -> tf.Tensor:
        return algorithm.first_priorities(*codec.decode(contents))

    return lambda contents: judge_contents(tf.constant(contents)).numpy()


def _make_spill(
    config: Config, codec: UnrollCodec, capacity: int, rank: int, run: RunOnHost, say: Say
) -> Spill | None:
    """Return the replay on disk that the flags ask for, if they do."""
    if not config.replay_spill:
        return None
    folder = folder_of(_spill_folder(config), rank)
    per_file = min(max(capacity // 64, 16), 4096)
    owner = Owner(str(run.folder.resolve()), codec.digest)
    return Spill(folder, owner, per_file, say, run.is_new)


def _memory_shares(mix: replay_mix.Mix, total: float) -> list[float]:
    """Return the bytes of each replay, by their capacities."""
    capacity = sum(part.capacity for part in mix.replays)
    return [total * part.capacity / capacity for part in mix.replays]


def _make_decode(codec: UnrollCodec) -> Callable[[Columns], Batch]:
    """Return the function that makes a batch on the training device."""
    device = devices.training_device()

    @tf.function(autograph=False)
    def decode(
        contents: tf.Tensor,
        keys: tf.Tensor,
        versions: tf.Tensor,
        weights: tf.Tensor,
        fresh: tf.Tensor,
    ) -> Batch:
        return decode_batch(codec, contents, versions, keys, fresh, device, weights)

    def decode_columns(columns: Columns) -> Batch:
        contents = _unpacked(columns.contents, codec)
        with tf.device("/CPU:0"):
            return decode(*map(tf.constant, columns._replace(contents=contents)))

    return decode_columns


def _unpacked(contents: Sequence[bytes | memoryview], codec: UnrollCodec) -> list[bytes]:
    """Return the bytes of stored unrolls; raise UserMistake if one is none.

    What actors send is checked before it is stored, but anybody may have written files.
    """
    try:
        return [unpack(content, codec.size) for content in contents]
    except ValueError as error:
        raise UserMistake(
            f"the files from which the replay was restored are damaged ({error}): delete the "
            f"folder own/ of the run, or that of --replay_spill"
        ) from None


def _make_measures(algorithm: Algorithm, codec: UnrollCodec, position: Position) -> Measures:
    """Return the functions that compute features of stored unrolls."""
    compare = algorithm.compare_features
    contents = [tf.TensorSpec([None], tf.string)]

    @tf.function(input_signature=contents, autograph=False)
    def recorded(contents: tf.Tensor) -> tf.Tensor:
        features, _ = compare(*codec.decode(contents))
        return tf.transpose(features, [1, 0, 2])  # [T, B, F] -> [B, T, F]

    @tf.function(input_signature=contents, autograph=False)
    def both(contents: tf.Tensor) -> list[tf.Tensor]:
        found = compare(*codec.decode(contents))
        return [tf.transpose(features, [1, 0, 2]) for features in found]

    def unpacked(unrolls: list[StoredUnroll]) -> tf.Tensor:
        return tf.constant(_unpacked([unroll.content for unroll in unrolls], codec))

    return Measures(
        lambda unrolls: recorded(unpacked(unrolls)).numpy(),
        lambda unrolls: ComparedFeatures(*(each.numpy() for each in both(unpacked(unrolls)))),
        position.updates,
    )
