"""Refusals of flags that fit neither each other, the number of processes nor the algorithm.

    refuse_before_loading     what the flags alone show, before TensorFlow is loaded
    refuse_for_algorithm      what shows once the algorithm is made

`jobs.local_run`, `jobs.learner` and `jobs.validate` call the first one, `setup` and `jobs.validate`
the second one. They end the program with exit code 2 and the first sentence that a function here
yields. What only one process can know (its addresses, its folder, its memory) is refused where it
is used.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from impala_mm.config import auto, flags, replay_mix
from impala_mm.config.environment_flags import PAST, SELF, read_opponents
from impala_mm.config.settings import Config
from impala_mm.runtime import machine, starter
from impala_mm.transport.rounds import why_too_few, why_unfit

if TYPE_CHECKING:
    from impala_mm.algorithms.agent import Agent
    from impala_mm.algorithms.interface import Algorithm


def refuse_before_loading(config: Config, learners: int) -> None:
    """Refuse flags that contradict each other; loading TensorFlow would take seconds.

    `learners` is the number of learners that are started together.
    """
    # The frontend says how many actors it starts; only a local run starts those of its flags.
    is_counted = config.job_name or starter.ACTORS_VARIABLE in os.environ
    actors = starter.num_actors() if is_counted else auto.num_actors(config)
    if config.job_name != "actor":  # an actor lacks the flags that are for learners only
        _refuse_first(_of_modes(config))
    if config.deterministic_run:
        _refuse_first(_of_repeating(config, learners, actors))
    if config.replay:
        _refuse_first(_of_replay(config))
    if not config.job_name:
        _refuse_first(_of_few_actors(config, learners, actors or 0))
    if config.num_envs != flags.AUTO:
        auto.check_groups(config, config.num_envs)


def refuse_for_algorithm(
    config: Config, agent: "Agent", learners: int, learners_here: int, actors: int, is_local: bool
) -> None:
    """Refuse flags that do not fit the algorithm; none that follows the environment is `auto`.

    The numbers are those of all learners, of those on this machine, and of all actors, or 0 if that
    is not known. `is_local`: one program starts all of them here, with the flags of this process.
    """
    from impala_mm.data.trajectory import UnrollCodec  # noqa: PLC0415
    from impala_mm.learner import phases  # noqa: PLC0415

    algorithm = agent.algorithm
    if config.inference == "learner" and (needed := why_at_actors(config, agent)):
        flags.refuse(f"--inference=learner: {needed}: use --inference=actor")
    _refuse_large_batch(config, UnrollCodec(algorithm.unroll).size, learners_here)
    if algorithm.rounds:
        agents = agent.spec.agents
        num_envs = auto.num_columns(config, agent.spec) // agents if is_local else None
        _refuse_first(_of_rounds(config, learners, actors, num_envs, is_local, agents))
        if algorithm.rounds_overlap and config.deterministic_run:
            flags.refuse(
                f"--deterministic_run: with --algorithm={config.algorithm} actors play while the "
                f"learner trains, so that it depends on their speed which policy plays: leave out "
                f"--rounds_overlap, or --deterministic_run"
            )
    if config.replay:
        _refuse_first(_of_replay_with(config, algorithm))
    if problem := phases.why_unsuitable(config, algorithm):
        flags.refuse(problem)


def why_at_actors(config: Config, agent: "Agent") -> str:
    """Return why actors must choose their own actions; empty if they need not."""
    if agent.spec.seats > 1 and {SELF, PAST} & read_opponents(config.opponents).keys():
        return f"--opponents={config.opponents} play in actors that have the network"
    return agent.algorithm.features.needs_actors


def _refuse_first(conflicts: Iterator[str]) -> None:
    if conflict := next(conflicts, ""):
        flags.refuse(conflict)


def _of_modes(config: Config) -> Iterator[str]:
    """Yield modes without their flags."""
    begin, _, end = config.profile.partition(":")
    if config.profile and not (begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
        yield f"--profile={config.profile}: it must be two numbers of updates, such as 100:120"
    if config.mode == "reincarnate" and not getattr(config, "teacher", ""):
        yield (
            "--mode=reincarnate needs --teacher: the policy that the student learns from (to start "
            "from its weights, as --preset=reload does, leave --mode=reincarnate out)"
        )
    if (config.mode == "train_from") != bool(config.checkpoint):
        yield "--mode=train_from and --checkpoint=FOLDER belong together: give both"
    if config.reload_replay and not config.replay_save:
        yield (
            "--reload_replay without --replay_save: a run that is resumed would lack what it began "
            "with: give both"
        )


def _of_repeating(config: Config, learners: int, actors: int | None) -> Iterator[str]:
    """Yield what --deterministic_run cannot have; None: the number of actors is not known yet."""
    for count, noun in ((learners, "learner"), (actors, "actor")):
        if count not in {1, None}:
            yield (
                f"--deterministic_run: it takes one learner and one actor, since the order in "
                f"which several work changes from run to run, and there are {count} {noun}s: "
                f"use --num_{noun}s=1, or one row of the CSV"
            )
    if config.inference == "learner":
        yield (
            "--deterministic_run: it takes an actor that chooses its own actions: use "
            "--inference=actor"
        )


def _of_few_actors(config: Config, learners: int, actors: int) -> Iterator[str]:
    """Yield why the actors of a run on this machine cannot feed all learners."""
    if config.rounds:
        num_envs = None if config.num_envs == flags.AUTO else config.num_envs
        yield from _of_rounds(config, learners, actors, num_envs, is_local=True)
    for name, value in (("inference", "learner"), ("learner_assignment", "fixed")):
        if getattr(config, name) == value and 0 < actors < learners:
            yield (
                f"--{name}={value}: {actors} actors cannot feed {learners} learners, since each "
                f"stays with its own: --num_actors={learners} or more"
            )


def _of_rounds(
    config: Config,
    learners: int,
    actors: int,
    num_envs: int | None,
    is_local: bool,
    agents: int = 1,
) -> Iterator[str]:
    """Yield why actors cannot fill the rounds of learners; None: their sizes are not known.

    `agents` are those of an environment.
    """
    if too_few := why_too_few(learners, actors):
        rows = "" if is_local else ", or more rows of actors in the CSV"
        yield f"--algorithm={config.algorithm}: {too_few}: use --num_actors={learners}{rows}"
    if num_envs is not None and (unfit := why_unfit(config.batch_size, num_envs, agents)):
        yield f"--algorithm={config.algorithm}: {unfit}"


def _of_replay(config: Config) -> Iterator[str]:
    """Yield why --replay cannot work, as far as the flags alone show."""
    given, spill = f"--replay={config.replay}", config.replay_spill
    if config.rounds:
        yield _of_newest_policy(config)
    if config.replay_save and spill:
        yield (
            f"--replay_save and --replay_spill={spill}: give one of them, since the spill keeps "
            f"the replay, too"
        )
    mix = replay_mix.parse(config.replay)
    if spill and any(part.options.get("insertion") == "elite" for part in mix.replays):
        yield (
            f"{given} and --replay_spill={spill}: insertion=elite keeps old unrolls here and "
            f"there, and with each the whole file in which it lies: use insertion=oldest, or leave "
            f"out --replay_spill"
        )
    if unsuitable := replay_mix.why_unsuitable(mix, config.batch_size, config.replay_ratio):
        yield f"{given}: {unsuitable}"
    least = min(part.capacity for part in mix.replays)
    if config.replay_min > least:
        yield (
            f"--replay_min={config.replay_min}: {given} has room for {least} unrolls: lower "
            f"replay_min or raise the capacity"
        )


def _of_newest_policy(config: Config) -> str:
    return (
        f"--replay={config.replay}: --algorithm={config.algorithm} learns only from unrolls of "
        f"its newest policy: leave --replay out, or use --algorithm=impala"
    )


def _of_replay_with(config: Config, algorithm: "Algorithm") -> Iterator[str]:
    """Yield why an algorithm cannot use --replay."""
    from impala_mm.algorithms.interface import defines  # noqa: PLC0415

    if algorithm.rounds:
        yield _of_newest_policy(config)
    given = f"--replay={config.replay}: --algorithm={config.algorithm}"
    if defines(algorithm.source):
        yield f"{given} has a source of its own: leave --replay out"
    mix = replay_mix.parse(config.replay)
    statistics = ["normalize_observations", "subtract_mean_image", "normalize_rewards"]
    on = [f"--{name}" for name in statistics if getattr(config, name)]
    if on and not mix.queue.share:
        yield (
            f"--replay={config.replay}: {' and '.join(on)} would learn nothing, since new unrolls "
            f"alone are counted and this mix has none: add a queue, such as queue:0.5, or start a "
            f"new run with {' '.join(f'{flag}=false' for flag in on)}"
        )
    if mix.who_need("features") and not defines(algorithm.compare_features):
        yield (
            f"{given} records no features, which this replay compares: use uniform or prioritised "
            f"instead"
        )


def _refuse_large_batch(config: Config, unroll_bytes: int, learners: int) -> None:
    """Refuse a batch and a queue that do not fit in memory, with `learners` on this machine."""
    given = f"--batch_size={config.batch_size}"
    if config.queue_capacity:
        given += f" with --queue_capacity={config.queue_capacity}"
    if learners > 1:
        given += f" for {learners} learners"
    unrolls = config.batch_size + (config.queue_capacity or config.batch_size)
    machine.refuse_too_many_unrolls(given, learners * unrolls, unroll_bytes)
