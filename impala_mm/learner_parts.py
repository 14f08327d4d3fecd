"""What a learner is made of: `look` finds levels, threads, device; `put_together` makes the rest.

To be imported once TensorFlow is; `learner_process` runs what comes of it.
"""

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm import (
    agreement,
    algorithms,
    checkpoint,
    choice,
    devices,
    flags,
    learner,
    ports,
    processes,
    provenance,
    sync,
    update,
)
from impala_mm.agreement import Agreement
from impala_mm.checkpoint import About, Checkpoints
from impala_mm.chronicle import Chronicle
from impala_mm.config import Config
from impala_mm.environments import EnvironmentSpec
from impala_mm.group import Group
from impala_mm.inference import Inference
from impala_mm.keeper import Keeper
from impala_mm.learner import Learner, Limits
from impala_mm.place import place
from impala_mm.profile import Profile
from impala_mm.run_folder import RunFolder
from impala_mm.server import Server
from impala_mm.source import QueueSource
from impala_mm.told import Told
from impala_mm.trajectory import Codec
from impala_mm.watch import Records, Watch

# What all learners of a run raise alike.
FAILURES = (
    agreement.Differ,
    checkpoint.Mismatch,
    learner.NotFinite,
    sync.Drifted,
    update.NothingCompiled,
)


def look(config: Config) -> tuple[dict[str, EnvironmentSpec], str]:
    """(the levels, the device in words): what decides by how many threads is computed, and where.

    Nothing may have been computed before.
    """
    here, cores = place(), len(os.sched_getaffinity(0))
    share = max(1, cores // here.local_size) if here.local_size > 1 else 0
    processes.compute_with(config.intra_op_threads or share, config.inter_op_threads or 2)
    device = devices.look("device", config.device, here.local_rank)
    levels = agreement.levels_of(config)
    spec, gpu = next(iter(levels.values())), bool(tf.config.get_visible_devices("GPU"))
    if choice.one_thread(config, spec.observation, gpu, config.algorithm in algorithms.BUILT_IN):
        with contextlib.suppress(RuntimeError):  # a level has computed already, with more
            processes.compute_with(1, 1)
            device = "one CPU core, since observations are small"
    devices.start()
    return levels, device


def put_together(
    config: Config,
    levels: dict[str, EnvironmentSpec],
    group: Group,
    address: str,
    folder: RunFolder | None,
    began: float,
    who: Told,
) -> tuple[Watch, Learner]:
    """A learner, listening and with the variables that it begins with."""
    say = who.say
    agreed = agreement.make(config, group.rank, levels)
    agreement.compare(group, config, agreed.identity)
    addresses = agreement.addresses(group, address)
    algorithm, spec = agreed.algorithm, agreed.spec
    codec = Codec(algorithm.unroll)
    capacity = config.queue_capacity or config.batch_size
    if folder:
        of = f" on {group.size} learners" if group.size > 1 else ""
        megabytes = capacity * codec.size / 1e6
        precision = devices.precision(config.precision, spec.observation)
        say(
            f"{' and '.join(levels)}, {config.algorithm} with {agreed.weights:,} weights{of}, in "
            f"{precision}; the queue holds {capacity} unrolls ({megabytes:.1f} MB)"
        )
        if spec.note:
            say(spec.note)
    chosen = choice.inference(config, agreed.weights, devices.training(), algorithm.max_lag)
    mine = agreed.identity["run_id"], processes.token(config), chosen
    run_id, token, chosen = group.gather(mine, "run")[0]
    if folder and chosen.why:
        say(f"inference at the {chosen.value}: {chosen.why}")
    changed = {"run_id": run_id, "learners": addresses, "inference": chosen.value}
    identity = agreed.identity | changed
    server = _listen(config, address, token, identity, capacity, say, agreed, codec.size)
    say(f"listens at {config.bind_address or address} ({time.monotonic() - began:.1f} s)")
    server.rank = group.rank
    limits = Limits(config, spec.reward_threshold if len(agreed.levels) == 1 else None)
    learning = Learner(
        config,
        algorithm,
        group,
        QueueSource(server, codec, config.batch_size),
        server,
        agreed.layout,
        limits,
        spec.action_repeats,
        Profile(config.profile if folder else "", folder.path if folder else Path(), say),
    )
    records = None
    if folder:
        checkpoints = Checkpoints(folder.path, algorithm.variables, config.keep_checkpoints)
        settings = dataclasses.asdict(config)
        about = About(group.size, settings, agreed.made_of, provenance.versions())
        keeper = Keeper(config, checkpoints, algorithm.variables, about, limits, who.events, say)
        records = Records(Chronicle(folder.path, say, who.tracked), keeper, who.events)
    watching = Watch(
        config, group, algorithm, learning, server, agreed.levels, limits, records, say
    )
    watching.resume()
    if folder:
        try:
            folder.write_start(addresses, learning.frames)
        except OSError as error:
            flags.refuse(f"--logdir={folder.path}: {error.strerror}")
    return watching, learning


def _inference(config: Config, agreed: Agreement) -> Inference:
    """It acts by a copy of the network, which does not change while an update is made."""
    refuse_inference(config, agreed)
    copy = agreement.make(agreement.acting(config), place().rank, agreed.levels)
    return Inference(copy.algorithm, copy.layout, devices.training())


def refuse_inference(config: Config, agreed: Agreement) -> None:
    """Where --inference=learner cannot be."""
    if config.inference == "learner" and agreed.algorithm.max_lag is not None:
        flags.refuse(
            f"--inference=learner: --algorithm={config.algorithm} has its actors wait for the next "
            f"policy, which only --inference=actor can"
        )


def _listen(
    config: Config,
    address: str,
    token: str,
    identity: dict[str, Any],
    capacity: int,
    say: Any,
    agreed: Agreement,
    unroll_bytes: int,
) -> Server:
    bind_address = config.bind_address or address
    warning = ports.only_here(bind_address) if config.job_name else ""
    if warning:
        say(warning)
    inference = None
    if identity["inference"] == "learner":
        inference = _inference(config, agreed)
    try:
        return Server(
            address, bind_address, token, identity, capacity, say, inference, unroll_bytes
        )
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")
