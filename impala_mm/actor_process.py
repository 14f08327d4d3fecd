"""An actor's process, from its flags to its exit code."""

import dataclasses
import signal
import threading
import traceback
from typing import Any, NoReturn

from impala_mm import children, demand, flags, heartbeat, processes
from impala_mm.config import Config


def act(config: Config) -> NoReturn:
    """Plays until the run or the user ends it."""
    children.die_with_parent()
    say = processes.Sayer(f"actor {config.task}")
    stop, ending = threading.Event(), []

    def end(number: int, _: Any) -> None:
        ending.append(number)
        if not stop.is_set():  # a second one may come while the first is being heard
            stop.set()

    processes.on_ending(end)
    learners = processes.addresses(config)
    start = first_learner(config, len(learners))
    if config.learner_assignment == "fixed":
        learners, start = [learners[start]], 0
    threads = config.intra_op_threads or 1, config.inter_op_threads or 1
    processes.load_tensorflow(*threads, config.actor_device)
    from impala_mm import actor, agreement, devices, environments, transport  # noqa: PLC0415
    from impala_mm.link import Link  # noqa: PLC0415

    device = devices.choose("actor_device", config.actor_device, config.task)
    if config.actor_device == "gpu":
        say(f"acts on {device}")
    token = processes.token(config)
    exactly = dataclasses.replace(config, precision="float32")  # lower pays off in large batches
    algorithm, layout, levels, identity, _ = agreement.make(exactly, config.task)
    level = list(levels)[config.task % len(levels)]
    # Apart for each environment of each actor.
    seed = config.seed * 1_000_003 + config.task * 10_007
    playing = environments.make(level, config.num_envs, seed, **agreement.options(config))
    pull_secs = demand.pull_secs(config.min_pull_secs, layout.size)
    identity |= {"actor": config.task, "level": level}
    link = Link(learners, start, identity, token, pull_secs, algorithm.max_lag, say, stop)
    code = 1
    try:
        alive = heartbeat.of_this_process()
        actor.run(algorithm, playing, config.num_envs, layout, link, say, stop, alive)
        code = processes.exit_code(ending)
        say(f"ended: asked to by {signal.Signals(ending[0]).name}")
    except (transport.Refused, actor.Stopped) as error:
        say(f"error: {error}")
    except Exception:
        traceback.print_exc()
    stop.set()
    link.close()
    playing.close()
    processes.leave(code)


def first_learner(config: Config, count: int) -> int:
    """The number of that which it begins with, of so many."""
    if config.learner >= count:
        flags.refuse(f"--learner={config.learner}: --learner_hosts names {count}, counted from 0")
    return config.learner if config.learner >= 0 else config.task % count
