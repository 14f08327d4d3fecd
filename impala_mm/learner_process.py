"""A learner's process, from its flags to its exit code: the parts are put together here."""

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from impala_mm import children, flags, ports, processes, provenance, tensorflow_import, tracking
from impala_mm.config import Config
from impala_mm.place import place, widen
from impala_mm.run_folder import RunFolder

if TYPE_CHECKING:
    from impala_mm.group import Group
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
    began, here = time.monotonic(), place()
    if config.track and here.rank == 0:
        tracking.check()
    say = processes.sayer(f"learner {here.rank}" if here.size > 1 else "learner")
    if here.size > 1 and (not config.job_name or config.num_learners > 1):
        flags.refuse(
            f"{here.size} processes were started together: they are to be learners, with "
            f"--job_name=learner and no --num_learners; actors are started one by one"
        )
    address = _address(config, here.rank)
    try:  # before there are actors, who would dial whoever listens there
        ports.check_free(config.bind_address or address)
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")
    if freed := widen():
        say(freed)
    folder = RunFolder(config) if here.rank == 0 else None  # the others write nothing
    count = 0 if config.job_name or not folder else config.num_actors
    actors = children.Actors(argv, count, folder.path if folder else Path())
    tracked = None
    if config.track and folder:
        tracked = tracking.Tracking(folder.path, dataclasses.asdict(config), say)
    try:
        code = _learn(config, address, folder, actors, began, say, tracked)
    finally:
        actors.end()
        if tracked:
            tracked.end()
    processes.leave(code)


def _learn(
    config: Config,
    address: str,
    folder: RunFolder | None,
    actors: children.Actors,
    began: float,
    say: Any,
    tracked: tracking.Tracking | None,
) -> int:
    """From its signals to its exit code."""
    ending: list[int] = []  # the signals that asked for an end
    processes.on_ending(lambda number, _: ending.append(number))
    if folder:
        say(f"logs to {folder.path}; {_how_to_look(folder.path)}")
    here = place()
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // here.local_size) if here.local_size > 1 else 0
    processes.load_tensorflow(config.intra_op_threads or share, config.inter_op_threads or 2)
    from impala_mm import agreement, checkpoint, devices, learner, sync, watch  # noqa: PLC0415
    from impala_mm import group as groups  # noqa: PLC0415

    device = devices.choose("device", config.device, here.local_rank)
    say(f"TensorFlow loaded ({time.monotonic() - began:.1f} s); trains on {device}")
    group = groups.join(config)
    code = 2
    try:
        watching, learning = _put_together(config, group, address, folder, began, say, tracked)

        def meanwhile() -> None:
            actors.watch(say)
            if ending:
                learning.stop(f"asked to by {signal.Signals(ending[0]).name}")

        if watching.finished:
            if folder:
                say(f"the run in {folder.path} is finished: {watching.finished}")
            group.gather(None, "finished")
            group.leave()
            return 0
        code = 1
        row = watching.run(meanwhile)
        group.gather(None, "saved")  # who left earlier could take rank 0 along
        if folder:
            _say_result(row, watching.ended, folder.path, say)
        code = processes.exit_code(ending)
        if not watching.saved:
            say("error: the last checkpoint could not be written")
            code = 1
    except watch.Lost as error:
        say(f"error: {error}; the last checkpoint is good, the same command goes on from it")
        return 1
    except (agreement.Differ, checkpoint.Mismatch, learner.NotFinite, sync.Drifted) as error:
        if folder:  # all learners raise the same
            say(f"error: {error}")
        group.gather(None, "said")
    group.leave()
    return code


def _put_together(
    config: Config,
    group: "Group",
    address: str,
    folder: RunFolder | None,
    began: float,
    say: Any,
    tracked: tracking.Tracking | None,
) -> "tuple[Watch, Learner]":
    """A learner, listening and with the variables that it begins with."""
    from impala_mm import agreement  # noqa: PLC0415
    from impala_mm.checkpoint import About, Checkpoints  # noqa: PLC0415
    from impala_mm.chronicle import Chronicle  # noqa: PLC0415
    from impala_mm.learner import Learner, Limits  # noqa: PLC0415
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
        weights = sum(int(v.shape.num_elements()) for v in algorithm.variables.trained)
        of = f" on {group.size} learners" if group.size > 1 else ""
        say(
            f"{' and '.join(agreed.levels)}, {config.algorithm} with {weights:,} weights{of}; the "
            f"queue holds {capacity} unrolls ({capacity * codec.size / 1e6:.1f} MB)"
        )
        if spec.note:
            say(spec.note)
    run_id, token = group.gather((agreed.identity["run_id"], processes.token(config)), "run")[0]
    identity = agreed.identity | {"run_id": run_id, "learners": addresses}
    server = _listen(config, address, token, identity, capacity, say)
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
    )
    records = None
    if folder:
        checkpoints = Checkpoints(folder.path, algorithm.variables, config.keep_checkpoints)
        settings = dataclasses.asdict(config)
        about = About(group.size, settings, agreed.made_of, provenance.versions())
        records = Records(Chronicle(folder.path, say, tracked), checkpoints, about)
    watching = Watch(
        config, group, algorithm, learning, server, agreed.levels, limits, records, say
    )
    watching.resume()
    if folder:
        try:
            folder.write_settings()
        except OSError as error:
            flags.refuse(f"--logdir={folder.path}: {error.strerror}")
    return watching, learning


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


def _listen(
    config: Config, address: str, token: str, identity: dict[str, Any], capacity: int, say: Any
) -> "Server":
    from impala_mm.server import Server  # noqa: PLC0415

    bind_address = config.bind_address or address
    warning = ports.only_here(bind_address) if config.job_name else ""
    if warning:
        say(warning)
    try:
        return Server(address, bind_address, token, identity, capacity, say)
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")


def _say_result(row: dict[str, Any], ended: str, logdir: Path, say: Any) -> None:
    result = f"mean return {row['episode_return']:.2f}" if "episode_return" in row else "no games"
    say(
        f"ended: {ended}; {result} after {row['frames']:,.0f} frames in "
        f"{row['seconds']:.0f} s; all of it in {logdir}"
    )


def _how_to_look(logdir: Path) -> str:
    here = Path("runs").resolve() in logdir.resolve().parents
    command = "make tensorboard" if here else f"tensorboard --logdir={logdir}"
    return f"`{command}` shows it at http://localhost:6006"
