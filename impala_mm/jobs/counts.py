"""The numbers of processes and environments in the flags: refusals of those that cannot work.

--validate and the process that starts a run call it, before TensorFlow is loaded.
"""

import os

from impala_mm.config import auto, flags, replay_mix
from impala_mm.config.settings import Config
from impala_mm.runtime import machine, provenance
from impala_mm.transport.rounds import why_too_few, why_unfit


def refuse_rounds(config: Config) -> None:
    """Refuse rounds that the actors cannot fill, where the flags alone show it."""
    if not config.rounds:
        return
    if why := why_too_few(config.num_learners, auto.num_actors(config)):
        flags.refuse(
            f"--algorithm={config.algorithm}: {why}: use --num_actors={config.num_learners}"
        )
    if config.num_envs == flags.AUTO:
        return
    if why := why_unfit(config.batch_size, config.num_envs):
        flags.refuse(f"--algorithm={config.algorithm}: {why}")


def _refuse_replay(config: Config) -> None:
    """Refuse --replay where the flags alone show that it cannot work."""
    if not config.replay:
        unset = {"replay_ratio": 0, "replay_min": 0, "replay_spill": "", "replay_overflow": "wait"}
        unset |= {"replay_max_gb": flags.AUTO}
        unset |= {} if config.own_replay else {"replay_save": False}
        values = {name: getattr(config, name) for name in unset}
        given = [f"--{name}={value}" for name, value in values.items() if value != unset[name]]
        if given:
            flags.refuse(f"{given[0]} has no effect without --replay: give both, or leave it out")
        return
    if config.rounds:
        flags.refuse(
            f"--replay={config.replay}: --algorithm={config.algorithm} learns only from unrolls of "
            f"its newest policy: leave --replay out, or use --algorithm=impala"
        )
    if config.replay_save and config.replay_spill:
        flags.refuse(
            f"--replay_save and --replay_spill={config.replay_spill}: give one of them, since the "
            f"spill keeps the replay, too"
        )
    mix = replay_mix.parse(config.replay)
    if config.replay_spill and any(p.options.get("insertion") == "elite" for p in mix.replays):
        flags.refuse(
            f"--replay={config.replay} and --replay_spill={config.replay_spill}: insertion=elite "
            f"keeps old unrolls here and there, and with each the whole file in which it lies: "
            f"use insertion=oldest, or leave out --replay_spill"
        )
    if why := replay_mix.why_unsuitable(mix, config.batch_size, config.replay_ratio):
        flags.refuse(f"--replay={config.replay}: {why}")
    least = min(part.capacity for part in mix.replays)
    if config.replay_min > least:
        flags.refuse(
            f"--replay_min={config.replay_min}: --replay={config.replay} has room for {least} "
            f"unrolls: lower replay_min or raise the capacity"
        )


def refuse_not_repeatable(config: Config, learners: int, actors: int | None) -> None:
    """Refuse --deterministic_run with more than one learner or actor; None: not known yet."""
    if not config.deterministic_run:
        return
    for count, noun in ((learners, "learner"), (actors, "actor")):
        if count not in {1, None}:
            flags.refuse(
                f"--deterministic_run: it takes one learner and one actor, since the order in "
                f"which several work changes from run to run, and there are {count} {noun}s: "
                f"use --num_{noun}s=1, or one row of the CSV"
            )
    if config.inference == "learner":
        flags.refuse(
            "--deterministic_run: it takes an actor that chooses its own actions: use "
            "--inference=actor"
        )


def check(config: Config, learners: int) -> None:
    """Refuse numbers that cannot work, and warn of those that are slow on this machine.

    `learners` is the number of learners on this machine.
    """
    # The frontend says how many actors it starts; only a local run starts those of its flags.
    is_known = bool(config.job_name) or provenance.ACTORS_VARIABLE in os.environ
    actors = provenance.num_actors() if is_known else auto.num_actors(config)
    refuse_not_repeatable(config, learners, actors)
    _refuse_replay(config)
    if config.num_envs != flags.AUTO:
        try:
            auto.check_groups(config, config.num_envs)
        except ValueError as error:
            flags.refuse(str(error))
        if uneven := auto.uneven_groups(config):
            flags.warn(uneven)
    cores = len(os.sched_getaffinity(0))
    gpus = machine.visible_gpus() if config.device != "cpu" else 0
    shared, unit = (gpus, "GPU") if gpus else (cores, "core")
    if learners > shared:
        flags.warn(
            f"{learners} learners share {shared} {unit}{'s' * (shared > 1)} of this machine, so "
            f"that each waits while another computes: {shared} or fewer are faster"
        )
