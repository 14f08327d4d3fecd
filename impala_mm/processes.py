"""What each kind of process does from its flags to its exit code: the parts are put together here.

Nothing heavy is imported before it is needed: a child's parent must be known to be alive, and a
learner's actors started, in the first tenths of a second.
"""

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from impala_mm import children, flags, ports, secret, tensorflow_import
from impala_mm.config import Config
from impala_mm.run_folder import RunFolder

if TYPE_CHECKING:
    from impala_mm.server import Server

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def rehearse(config: Config) -> int:
    """Trains on generated data, all learners together."""
    _say("learner", "loading TensorFlow")
    tensorflow_import.load()
    from impala_mm import exchange, rehearsal  # noqa: PLC0415

    rehearsal.rehearse(config, exchange.join())
    return 0


def act(config: Config) -> NoReturn:
    """Plays until the run or the user ends it."""
    children.die_with_parent()
    name = f"actor {config.task}"
    stop, ending = threading.Event(), []

    def end(number: int, _: Any) -> None:
        ending.append(number)
        if not stop.is_set():  # a second one may come while the first is being heard
            stop.set()

    _on_ending(end)
    address = _address(config, config.task)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # an actor's network is small and the GPU is not its
    _load_tensorflow(config.intra_op_threads or 1, config.inter_op_threads or 1)
    from impala_mm import actor, agreement, environments, transport  # noqa: PLC0415
    from impala_mm.link import Link  # noqa: PLC0415

    token = _token(config)
    algorithm, layout, levels, identity = agreement.make(config)
    level = list(levels)[config.task % len(levels)]
    # Apart for each environment of each actor.
    seed = config.seed * 1_000_003 + config.task * 10_007
    playing = environments.make(level, config.num_envs, seed, **agreement.options(config))
    pull_secs = config.min_pull_secs
    if pull_secs < 0:
        pull_secs = layout.size / 12.5e6  # a tenth of 1 Gbit/s, in bytes
    identity |= {"actor": config.task, "level": level}
    say = _sayer(name)
    link = Link(address, identity, token, pull_secs, algorithm.max_lag, say, stop)
    code = 1
    try:
        actor.run(algorithm, playing, config.num_envs, layout, link, say, stop)
        code = _exit_code(ending)
        say(f"ended: asked to by {signal.Signals(ending[0]).name}")
    except (transport.Refused, actor.Stopped) as error:
        say(f"error: {error}")
    except Exception:
        traceback.print_exc()
    stop.set()
    link.close()
    playing.close()
    _leave(code)


def learn(config: Config, argv: list[str]) -> NoReturn:
    """Trains; without --job_name with actors of its own, which end with it."""
    began = time.monotonic()
    say = _sayer("learner")
    address = _address(config, config.task)
    try:  # before there are actors, who would dial whoever listens there
        ports.check_free(config.bind_address or address)
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")
    folder = RunFolder(config)
    count = 0 if config.job_name else config.num_actors
    actors = children.Actors(argv, count, folder.path)
    try:
        code = _learn(config, address, folder, actors, began, say)
    finally:
        actors.end()
    _leave(code)


def _learn(
    config: Config, address: str, folder: RunFolder, actors: children.Actors, began: float, say: Any
) -> int:
    logdir = folder.path
    ending: list[int] = []  # the signals that asked for an end

    _on_ending(lambda number, _: ending.append(number))
    say(f"logs to {logdir}; {_how_to_look(logdir)}")
    _load_tensorflow(config.intra_op_threads, config.inter_op_threads or 2)
    from impala_mm import agreement, checkpoint, exchange, learner, metrics  # noqa: PLC0415
    from impala_mm.source import QueueSource  # noqa: PLC0415
    from impala_mm.trajectory import Codec  # noqa: PLC0415

    say(f"TensorFlow loaded ({time.monotonic() - began:.1f} s); trains on {_device(config)}")
    group = exchange.join()
    if group.size > 1:
        flags.refuse(
            f"{group.size} learners were started: so far several learners only rehearse "
            f"(--mode=rehearsal); start one learner to train"
        )
    agreed = agreement.make(config)
    algorithm, spec = agreed.algorithm, agreed.spec
    if spec.note:
        say(spec.note)
    codec = Codec(algorithm.unroll)
    capacity = config.queue_capacity or config.batch_size
    weights = sum(int(v.shape.num_elements()) for v in algorithm.variables.trained)
    say(
        f"{' and '.join(agreed.levels)}, {config.algorithm} with {weights:,} weights; the queue "
        f"holds {capacity} unrolls ({capacity * codec.size / 1e6:.1f} MB)"
    )
    server = _listen(config, address, agreed.identity, capacity, say)
    say(f"listens at {config.bind_address or address} ({time.monotonic() - began:.1f} s)")
    learning = learner.Learner(
        config=config,
        algorithm=algorithm,
        exchange=exchange.Exchange(
            group, config.gradients_clipping, config.gradients_clipping_mode
        ),
        source=QueueSource(server, codec, config.batch_size),
        server=server,
        layout=agreed.layout,
        checkpoints=checkpoint.Checkpoints(logdir, algorithm.variables),
        log=metrics.Log(logdir),
        levels=agreed.levels,
        limits=learner.Limits(config, spec.reward_threshold if len(agreed.levels) == 1 else None),
        say=say,
    )

    def meanwhile() -> None:
        actors.watch(say)
        if ending:
            learning.stop(f"asked to by {signal.Signals(ending[0]).name}")

    try:
        learning.resume()
        folder.write_settings()
    except checkpoint.Mismatch as error:
        flags.refuse(str(error))
    except OSError as error:
        flags.refuse(f"--logdir={logdir}: {error.strerror}")
    row = learning.run(meanwhile)
    if isinstance(learning.failure, learner.NotFinite):
        say(f"error: {learning.failure}")
        return 1
    if learning.failure:
        raise learning.failure
    _say_result(row, learning.ended, logdir, say)
    if not learning.saved:
        say("error: the last checkpoint could not be written")
        return 1
    return _exit_code(ending)


def _listen(
    config: Config, address: str, identity: dict[str, Any], capacity: int, say: Any
) -> "Server":
    from impala_mm.server import Server  # noqa: PLC0415

    bind_address = config.bind_address or address
    warning = ports.only_here(bind_address) if config.job_name else ""
    if warning:
        say(warning)
    try:
        return Server(address, bind_address, _token(config), identity, capacity, say)
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")


def _say_result(row: dict[str, Any], ended: str, logdir: Path, say: Any) -> None:
    result = f"mean return {row['episode_return']:.2f}" if "episode_return" in row else "no games"
    say(
        f"ended: {ended}; {result} after {row['frames']:,.0f} frames in "
        f"{row['seconds']:.0f} s; all of it in {logdir}"
    )


def _on_ending(handler: Any) -> None:
    """What SIGINT, SIGTERM, SIGUSR1 and, but under nohup, SIGHUP do."""
    for number in _ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _leave(code: int) -> NoReturn:
    """Ends now: threads that wait in TensorFlow for others would hold a slower end up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(ending: list[int]) -> int:
    """As shells have it: 130 after Ctrl-C. SIGUSR1 is the order to save and stop: all is well."""
    return 0 if not ending or ending[0] == signal.SIGUSR1 else 128 + ending[0]


def _token(config: Config) -> str:
    try:
        return secret.read_or_make(config.token_file)
    except OSError as error:
        flags.refuse(f"--token_file: {error}")


def _address(config: Config, place: int) -> str:
    """This process's learner, among those of --learner_hosts: a learner's own, or an actor's.

    A proxy of the environment would capture the connection: told before TensorFlow is imported.
    """
    addresses = [address.strip() for address in config.learner_hosts.split(",")]
    try:
        hosts = [ports.split_address(address)[0] for address in addresses]
        if config.bind_address:
            ports.split_address(config.bind_address)
    except ValueError as error:
        flags.refuse(str(error))
    if config.job_name != "actor" and place >= len(addresses):
        flags.refuse(
            f"--task={place}: --learner_hosts names {len(addresses)} learner(s), counted from 0"
        )
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name, ""), *hosts]))
    return addresses[place % len(addresses)]


def _how_to_look(logdir: Path) -> str:
    here = Path("runs").resolve() in logdir.resolve().parents
    command = "make tensorboard" if here else f"tensorboard --logdir={logdir}"
    return f"`{command}` shows it at http://localhost:6006"


def _device(config: Config) -> str:
    """Chooses where the learner's network runs; in words."""
    import tensorflow as tf  # noqa: PLC0415

    gpus = tf.config.list_physical_devices("GPU")
    if config.device == "gpu" and not gpus:
        flags.refuse(
            "--device=gpu: TensorFlow sees no GPU here (`nvidia-smi` lists them, `make setup "
            "DEVICE=gpu` installs TensorFlow for them, CUDA_VISIBLE_DEVICES may hide them)"
        )
    if config.device == "cpu" or not gpus:
        tf.config.set_visible_devices([], "GPU")
        return f"{len(os.sched_getaffinity(0))} CPU cores"
    tf.config.set_visible_devices(gpus[:1], "GPU")
    tf.config.experimental.set_memory_growth(gpus[0], True)  # others may use what we do not
    return f"{gpus[0].name}, the first of {len(gpus)}"


def _load_tensorflow(intra: int, inter: int) -> None:
    """With so many threads within an operation and across them; 0: all cores."""
    tensorflow_import.load()
    import tensorflow as tf  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)


def _sayer(name: str) -> Any:
    return lambda message: _say(name, message)


def _say(name: str, message: str) -> None:
    print(f"[{name}] {message}", flush=True)
