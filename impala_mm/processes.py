"""What each kind of process does from its flags to its exit code: the parts are put together here.

Nothing heavy is imported before it is needed: a child's parent must be known to be alive, and a
learner's actors started, in the first tenths of a second.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from impala_mm import flags, ports, secret
from impala_mm.config import Config

_PARENT = "IMPALA_MM_PARENT"  # in the environment of a child: the process it must not outlive


def rehearse(config: Config) -> int:
    """Trains on generated data, all learners together."""
    _say("learner", "loading TensorFlow")
    from impala_mm import exchange, rehearsal  # noqa: PLC0415

    rehearsal.rehearse(config, exchange.join())
    return 0


def act(config: Config) -> int:
    """Plays until the run or the user ends it."""
    _die_with_parent()
    name = f"actor {config.task}"
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: stop.set())
    _reach_directly(config)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # an actor's network is small and the GPU is not its
    _set_threads(config.intra_op_threads or 1, config.inter_op_threads or 1)
    from impala_mm import actor, environments, transport  # noqa: PLC0415

    token = _token(config)
    algorithm, layout, identity, _ = _build(config)
    options = _environment_options(config)
    # Apart for each environment of each actor.
    seed = config.seed * 1_000_003 + config.task * 10_007
    playing = environments.make(config.level_name, config.num_envs, seed, **options)
    pull_secs = config.min_pull_secs
    if pull_secs < 0:
        pull_secs = layout.size / 12.5e6  # a tenth of 1 Gbit/s, in bytes
    identity |= {"actor": config.task}
    say = _sayer(name)
    link = actor.Link(config.learner_hosts, identity, token, pull_secs, say)
    code = 0
    try:
        actor.run(algorithm, playing, config.num_envs, layout, link, say, stop)
    except (transport.Refused, actor.Stopped) as error:
        say(f"error: {error}")
        code = 1
    link.stop()
    playing.close()
    sys.stdout.flush()
    os._exit(code)  # a call to an absent learner may still hold the link's thread


def learn(config: Config, argv: list[str]) -> int:
    """Trains; without --job_name with actors of its own, which end with it."""
    began = time.monotonic()
    say = _sayer("learner")
    try:
        for address in filter(None, [config.learner_hosts, config.bind_address]):
            ports.split_address(address)
    except ValueError as error:
        flags.refuse(str(error))
    _reach_directly(config)
    logdir = _logdir(config)
    children = _Actors(argv, config.num_actors if not config.job_name else 0, logdir)
    try:
        return _learn(config, logdir, children, began, say)
    finally:
        children.end()


def _learn(config: Config, logdir: Path, children: "_Actors", began: float, say: Any) -> int:
    ending: list[int] = []  # the signals that asked for an end

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: ending.append(number))
    say(f"logs to {logdir}")
    _set_threads(config.intra_op_threads, config.inter_op_threads or 2)
    from impala_mm import checkpoint, exchange, learner, metrics, transport  # noqa: PLC0415
    from impala_mm.trajectory import Codec  # noqa: PLC0415

    say(f"TensorFlow loaded ({time.monotonic() - began:.1f} s)")
    group = exchange.join()
    if group.size > 1:
        flags.refuse(
            f"{group.size} learners were started: so far several learners only rehearse "
            f"(--mode=rehearsal); start one learner to train"
        )
    token = _token(config)
    algorithm, layout, identity, spec = _build(config)
    if spec.note:
        say(spec.note)
    codec = Codec(algorithm.unroll)
    capacity = config.queue_capacity or config.batch_size
    weights = sum(int(v.shape.num_elements()) for v in algorithm.variables.trained)
    say(
        f"{config.level_name}, {config.algorithm} with {weights:,} weights; the queue holds "
        f"{capacity} unrolls ({capacity * codec.size / 1e6:.1f} MB)"
    )
    address = config.learner_hosts
    try:
        server = transport.Server(
            address, config.bind_address or address, token, identity, capacity, say
        )
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")
    say(f"listens at {config.bind_address or address} ({time.monotonic() - began:.1f} s)")
    learning = learner.Learner(
        config=config,
        algorithm=algorithm,
        exchange=exchange.Exchange(
            group, config.gradients_clipping, config.gradients_clipping_mode
        ),
        source=learner.QueueSource(server, codec, config.batch_size),
        server=server,
        layout=layout,
        checkpoints=checkpoint.Checkpoints(logdir, algorithm.variables),
        log=metrics.Log(logdir),
        action_repeats=spec.action_repeats,
        limits=learner.Limits(config, spec.reward_threshold),
        say=say,
    )

    def meanwhile() -> None:
        children.watch(say)
        if ending:
            learning.stop(f"asked to by {signal.Signals(ending[0]).name}")

    try:
        row = learning.run(meanwhile)
    except checkpoint.Mismatch as error:
        flags.refuse(str(error))
    if isinstance(learning.failure, learner.NotFinite):
        say(f"error: {learning.failure}")
        return 1
    if learning.failure:
        raise learning.failure
    result = f"mean return {row['episode_return']:.2f}" if "episode_return" in row else "no games"
    say(
        f"ended: {learning.ended}; {result} after {row['frames']:,.0f} frames in "
        f"{row['seconds']:.0f} s; all of it in {logdir}"
    )
    if not ending or ending[0] == signal.SIGUSR1:  # the order to save and stop
        return 0
    return 128 + ending[0]


class _Actors:
    """The actors that a learner of this machine starts: restarted when they die, ended with it."""

    def __init__(self, argv: list[str], count: int, logdir: Path):
        self._argv, self._logdir = argv, logdir
        self._processes: dict[int, subprocess.Popen] = {}
        self._deaths: dict[int, int] = dict.fromkeys(range(count), 0)
        self._again: dict[int, float] = dict.fromkeys(range(count), 0.0)
        self.watch(lambda message: None)

    def watch(self, say: Any) -> None:
        """Starts those that are due; called from the main thread, which they die with."""
        for task, process in list(self._processes.items()):
            if process.poll() is not None:
                del self._processes[task]
                self._deaths[task] += 1
                if self._deaths[task] > 20:
                    say(f"actor {task} has died 20 times, and stays away: see {self._log(task)}")
                    continue
                delay = min(0.5 * 2 ** min(self._deaths[task], 6), 30.0)
                self._again[task] = time.monotonic() + delay
                say(
                    f"actor {task} ended with code {process.returncode}; it starts again in "
                    f"{delay:.0f} s ({self._last_line(task)})"
                )
        for task, when in list(self._again.items()):
            if time.monotonic() >= when:
                del self._again[task]
                self._processes[task] = self._start(task)

    def end(self) -> None:
        """Ends all of them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, task: int) -> subprocess.Popen:
        command = [sys.executable, *self._argv, "--job_name=actor", f"--task={task}"]
        with self._log(task).open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {_PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is the learner's to act on
            )

    def _log(self, task: int) -> Path:
        return self._logdir / f"actor-{task}.log"

    def _last_line(self, task: int) -> str:
        lines = self._log(task).read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def _die_with_parent() -> None:
    """A child of `_Actors` is killed by the kernel when its learner ends, however that happens."""
    parent = int(os.environ.get(_PARENT, "0"))
    if not parent:
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _build(config: Config) -> tuple[Any, Any, dict[str, Any], Any]:
    """(algorithm, its parameters' layout, what learner and actor agree on, environment's spec)."""
    import tensorflow as tf  # noqa: PLC0415

    import nets  # noqa: PLC0415
    from impala_mm import algorithms, transport  # noqa: PLC0415
    from impala_mm.parameters import Layout  # noqa: PLC0415
    from impala_mm.trajectory import digest  # noqa: PLC0415

    tf.random.set_seed(config.seed + 1000 * config.task)
    spec = _environment_spec(config)
    try:
        algorithm = algorithms.make(config, spec)
    except (nets.UnknownNetwork, nets.Unsuitable) as error:
        flags.refuse(f"--agent_name={config.agent_name}: {error}")
    layout = Layout(algorithm.variables.acting, algorithm.variables.trained, config.parameter_dtype)
    name = nets.auto(spec.observation) if config.agent_name == "auto" else config.agent_name
    identity = {
        "protocol": transport.PROTOCOL,
        "run_id": f"{os.getpid()}-{time.time_ns()}",
        "level_name": config.level_name,
        "network": name,
        "unroll": digest(algorithm.unroll[2:]) + f" of {config.unroll_length}",
        "acting": layout.digest,
    }
    return algorithm, layout, identity, spec


def _environment_options(config: Config) -> dict[str, Any]:
    from impala_mm import environments  # noqa: PLC0415

    return {name: getattr(config, name) for name in environments.FLAGS}


def _environment_spec(config: Config) -> Any:
    from impala_mm import environments  # noqa: PLC0415

    try:
        return environments.spec(config.level_name, **_environment_options(config))
    except environments.BadLevel as error:
        flags.refuse(f"--level_name={config.level_name}: {error}")


def _logdir(config: Config) -> Path:
    """The run's folder, with its settings in it."""
    level = config.level_name.replace("/", "-").replace(":", "-")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path(config.logdir or f"runs/{level}-{config.algorithm}-{stamp}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings = json.dumps(vars(config), indent=1)
        (folder / "settings.json").write_text(settings)
    except OSError as error:
        flags.refuse(f"--logdir={folder}: {error.strerror}")
    return folder


def _token(config: Config) -> str:
    try:
        return secret.read_or_make(config.token_file)
    except OSError as error:
        flags.refuse(f"--token_file: {error}")


def _reach_directly(config: Config) -> None:
    """A proxy of the environment would capture the connection; before TensorFlow is imported."""
    hosts = [address.rpartition(":")[0] for address in config.learner_hosts.split(",")]
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name, ""), *hosts]))


def _set_threads(intra: int, inter: int) -> None:
    import tensorflow as tf  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)


def _sayer(name: str) -> Any:
    return lambda message: _say(name, message)


def _say(name: str, message: str) -> None:
    print(f"[{name}] {message}", flush=True)
