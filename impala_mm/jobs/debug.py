"""--debug: a training in this one process, computed eagerly, in which breakpoints work.

It is the learner's process (`jobs.learner`), whose loop asks for a batch: then the environments
play here, in the same thread, until there is one. No graph is traced and nothing is compiled:
`breakpoint()` and `print` show values in an algorithm's `act` and `update` and in an environment.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.actor.failures import FaultCounter
from impala_mm.actor.policy_puller import PolicyVersion
from impala_mm.algorithms import agent
from impala_mm.algorithms.interface import Role
from impala_mm.data.episodes import ReportedEpisodes
from impala_mm.environments import from_flags, seeds
from impala_mm.environments.make import make_environments
from impala_mm.jobs import actor
from impala_mm.learner.learner import Learner
from impala_mm.learner.monitor import LearnerMonitor
from impala_mm.learner.start import Start
from impala_mm.runtime.heartbeat import Heartbeat


def run(
    start: Start, monitor: LearnerMonitor, learner: Learner, meanwhile: Callable[[], None]
) -> dict[str, Any]:
    """Train until a limit is reached, or `meanwhile` stops it; return the last row of metrics."""
    # Its flags have what `auto` stands for in this run.
    config, say, played = monitor.status.config, start.say, start.played
    assert played
    say(
        "--debug: everything is computed in this process, step by step, which is slow; "
        "breakpoint() works in act, update and environments"
    )
    tf.config.run_functions_eagerly(True)
    copy = agent.make_agent(agent.config_for_acting(config), config.task, role=Role.ACTOR)
    (level, spec), *others = copy.levels.items()
    if others:
        say(f"--debug plays {level} alone, the first level")
    seed, options = seeds.of_actor(config.seed, config.task), from_flags.environment_options(config)
    environments = make_environments(level, config.num_envs, seed, **options)
    size = config.num_envs * spec.agents
    groups, heart = [(environments, size)], Heartbeat()
    faults = FaultCounter(groups, heart, say)
    player = UnrollPlayer(
        copy.algorithm,
        groups,
        heart,
        lambda settings: start.tools.load_teachers(settings, spec),
        actor.opponents_of(config, spec),
    )

    def load_policy() -> PolicyVersion:
        copy.layout.assign_bytes(learner.newest_policy())
        return PolicyVersion(0, learner.updates)

    def play(timeout: float) -> list[tuple[bytes, int]]:
        if timeout <= 0:
            return []
        meanwhile()
        monitor.look_alone()
        contents = player.play(load_policy)
        faults.after_unroll(player.whole)
        ended = player.episodes()
        learner.meter.add_episodes(ReportedEpisodes(level, 0, learner.updates, ended, size))
        versions = [policy.version for policy in player.policies]
        return list(zip(contents, versions, strict=True))

    played.play = play
    try:
        return monitor.run_here()
    finally:
        faults.say_counts()
        player.close()
        environments.close()
