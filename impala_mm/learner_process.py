"""A learner's process, from its flags to its exit code: the parts are put together here."""

import dataclasses
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from impala_mm import (
    children,
    choice,
    flags,
    ports,
    processes,
    provenance,
    tensorflow_import,
    tracking,
)
from impala_mm.config import Config
from impala_mm.events import Events
from impala_mm.log import Log
from impala_mm.place import place, widen
from impala_mm.run_folder import RunFolder

if TYPE_CHECKING:
    from impala_mm.agreement import Agreement
    from impala_mm.group import Group
    from impala_mm.inference import Inference
    from impala_mm.learner import Learner
    from impala_mm.server import Server
    from impala_mm.watch import Watch


def rehearse(config: Config) -> NoReturn:
    """Trains on generated data, all learners together."""
    print("[learner] loading TensorFlow", flush=True)
    tensorflow_import.load()
    from impala_mm import group, rehearsal  # noqa: PLC0415

    rehearsal.rehearse(config, group.join(config))
    sys.exit(0)


def learn(config: Config, argv: list[str]) -> NoReturn:
    """Trains; without --job_name with actors of its own, which end with it."""
    processes.share_memory()
    began, here = time.monotonic(), place()
    if config.track and here.rank == 0:
        tracking.check()
    say = processes.Sayer(f"learner {here.rank}" if here.size > 1 else "learner")
    if here.size > 1 and (not config.job_name or config.num_learners > 1):
        flags.refuse(
            f"{here.size} processes were started together: they are to be learners, with "
            f"--job_name=learner and no --num_learners; actors are started one by one"
        )
    address = _address(config, here.rank)
    refuse_what_cannot_be(config)
    try:  # before there are actors, who would dial whoever listens there
        ports.check_free(config.bind_address or address)
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")
    if freed := widen():
        say(freed)
    folder = RunFolder(config) if here.rank == 0 else None  # the others write nothing
    if folder:
        say.log = Log(folder.path / "learner.log", config.log_max_mb)
    count = 0 if config.job_name or not folder else choice.actors(config)
    actors = children.Actors(argv, count, folder.path if folder else Path(), config.log_max_mb)
    told = _told(config, folder, say)
    try:
        code = _learn(config, address, folder, actors, began, told)
    except Exception as error:
        if say.log:
            say.log.write(traceback.format_exc())
        told.events.happened("end", f"error: {error}")
        raise
    finally:
        actors.end()
        if told.tracked:
            told.tracked.end()
    processes.leave(code)


class _Told(NamedTuple):
    """Who is told of a run, besides its own folder."""

    say: processes.Sayer
    events: Events
    tracked: tracking.Tracking | None


def _told(config: Config, folder: RunFolder | None, say: processes.Sayer) -> _Told:
    if not folder:
        return _Told(say, Events("", Path(), say), None)
    events = Events(config.on_event, folder.path, say)
    tracked = tracking.Tracking(folder.path, dataclasses.asdict(config), say)
    return _Told(say, events, tracked if config.track else None)


def _learn(
    config: Config,
    address: str,
    folder: RunFolder | None,
    actors: children.Actors,
    began: float,
    told: _Told,
) -> int:
    """From its signals to its exit code."""
    say, events, _ = told
    ending: list[int] = []  # the signals that asked for an end
    processes.on_ending(lambda number, _: ending.append(number))
    if folder:
        say(f"logs to {folder.path}; {_how_to_look(folder.path)}")
    here = place()
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // here.local_size) if here.local_size > 1 else 0
    processes.load_tensorflow(config.intra_op_threads or share, config.inter_op_threads or 2)
    from impala_mm import agreement, checkpoint, devices, learner, sync, update, watch  # noqa: PLC0415
    from impala_mm import group as groups  # noqa: PLC0415

    device = devices.choose("device", config.device, here.local_rank)
    say(f"TensorFlow loaded ({time.monotonic() - began:.1f} s); trains on {device}")
    if config.xla and (why := devices.why_not_compiled()):
        flags.refuse(f"--xla: XLA does not compile for {device} here: {why}")
    group = groups.join(config)
    path = folder.path if folder else Path()
    code = 2
    try:
        watching, learning = _put_together(config, group, address, folder, began, told)

        def meanwhile() -> None:
            actors.watch(say)
            if ending:
                learning.stop(f"asked to by {signal.Signals(ending[0]).name}")

        if watching.finished:
            result, code = f"the run in {path} is finished: {watching.finished}", 0
        else:
            code = 1
            result = _result(watching.run(meanwhile), watching.ended, path)
            code = processes.exit_code(ending) if watching.saved else 1
        group.gather(None, "saved")  # who left earlier could take rank 0 along
        if folder:
            say(result)
        if not watching.saved:
            say("error: the last checkpoint could not be written")
        events.happened("end", result)
    except watch.Lost as error:
        say(f"error: {error}; what was saved is good, the same command goes on from it")
        events.happened("end", f"error: {error}")
        return 1
    except (
        agreement.Differ,
        checkpoint.Mismatch,
        learner.NotFinite,
        sync.Drifted,
        update.NothingCompiled,
    ) as error:
        if folder:  # all learners raise the same
            say(f"error: {error}")
        events.happened("nan" if isinstance(error, learner.NotFinite) else "end", f"error: {error}")
        group.gather(None, "said")
    group.leave()
    return code


def _put_together(
    config: Config,
    group: "Group",
    address: str,
    folder: RunFolder | None,
    began: float,
    told: _Told,
) -> "tuple[Watch, Learner]":
    """A learner, listening and with the variables that it begins with."""
    say = told.say
    from impala_mm import agreement, devices  # noqa: PLC0415
    from impala_mm.checkpoint import About, Checkpoints  # noqa: PLC0415
    from impala_mm.chronicle import Chronicle  # noqa: PLC0415
    from impala_mm.keeper import Keeper  # noqa: PLC0415
    from impala_mm.learner import Learner, Limits  # noqa: PLC0415
    from impala_mm.profile import Profile  # noqa: PLC0415
    from impala_mm.source import QueueSource  # noqa: PLC0415
    from impala_mm.trajectory import Codec  # noqa: PLC0415
    from impala_mm.watch import Records, Watch  # noqa: PLC0415

    agreed = agreement.make(config, group.rank)
    agreement.compare(group, config, agreed.identity)
    addresses = agreement.addresses(group, address)
    algorithm, spec = agreed.algorithm, agreed.spec
    codec = Codec(algorithm.unroll)
    capacity = config.queue_capacity or config.batch_size
    if folder:
        of = f" on {group.size} learners" if group.size > 1 else ""
        levels, megabytes = " and ".join(agreed.levels), capacity * codec.size / 1e6
        precision = devices.precision(config.precision, spec.observation)
        say(
            f"{levels}, {config.algorithm} with {agreed.weights:,} weights{of}, in "
            f"{precision}; the queue holds {capacity} unrolls ({megabytes:.1f} MB)"
        )
        if spec.note:
            say(spec.note)
    place = choice.inference(config, agreed.weights, devices.training(), algorithm.max_lag)
    mine = agreed.identity["run_id"], processes.token(config), place
    run_id, token, place = group.gather(mine, "run")[0]
    if folder and place.why:
        say(f"inference at the {place.value}: {place.why}")
    changed = {"run_id": run_id, "learners": addresses, "inference": place.value}
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
        keeper = Keeper(config, checkpoints, algorithm.variables, about, limits, told.events, say)
        records = Records(Chronicle(folder.path, say, told.tracked), keeper, told.events)
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


def refuse_what_cannot_be(config: Config) -> None:
    """Before anything is started for it."""
    begin, _, end = config.profile.partition(":")
    if config.profile and not (begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
        flags.refuse(f"--profile={config.profile}: two numbers of updates are due, as in 100:120")
    if (config.mode == "train_from") != bool(config.checkpoint):
        flags.refuse("--mode=train_from and --checkpoint=FOLDER belong together: give both")


def _address(config: Config, rank: int) -> str:
    """Where actors reach this learner: its own entry of --learner_hosts, or the only one."""
    addresses = processes.addresses(config)
    if len(addresses) == 1:
        return addresses[0]
    if rank >= len(addresses):
        flags.refuse(
            f"{place().size} learners were started, and --learner_hosts names {len(addresses)}: "
            f"name one for each"
        )
    return addresses[rank]


def _inference(config: Config, agreed: "Agreement") -> "Inference":
    """It acts by a copy of the network, which does not change while an update is made."""
    from impala_mm import agreement, devices  # noqa: PLC0415
    from impala_mm.inference import Inference  # noqa: PLC0415

    refuse_inference(config, agreed)
    copy = agreement.make(agreement.acting(config), place().rank)
    return Inference(copy.algorithm, copy.layout, devices.training())


def refuse_inference(config: Config, agreed: "Agreement") -> None:
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
    agreed: "Agreement",
    unroll_bytes: int,
) -> "Server":
    from impala_mm.server import Server  # noqa: PLC0415

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


def _result(row: dict[str, Any], ended: str, logdir: Path) -> str:
    result = f"mean return {row['episode_return']:.2f}" if "episode_return" in row else "no games"
    return (
        f"ended: {ended}; {result} after {row['frames']:,.0f} frames in "
        f"{row['seconds']:.0f} s; all of it in {logdir}"
        if row  # rank 0's
        else f"ended: {ended}"
    )


def _how_to_look(logdir: Path) -> str:
    here = Path("runs").resolve() in logdir.resolve().parents
    command = "make tensorboard" if here else f"tensorboard --logdir={logdir}"
    return f"`{command}` shows it at http://localhost:6006"
