"""The job of --mode=record: a trained policy plays complete games into a data set for students.

The policy and its level are chosen as by --mode=test (`evaluate`), and games are played as there.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.jobs import evaluate
from impala_mm.records import checkpoint
from impala_mm.runtime import lifecycle, log


def run(config: Config, given: Sequence[str]) -> NoReturn:
    """Play and record the games, and end the process; `given`: see `evaluate.run`."""
    ending: list[int] = []  # signals received
    lifecycle.remember_end_signals(ending)
    refuse_bad_flags(config)
    evaluate.load_tensorflow_to_play(config, intra=0)
    from impala_mm.replay.data_set import BadData  # noqa: PLC0415

    try:
        complete = _record(config, given, ending)
    except BadData as error:
        flags.refuse(f"--record_dir: {error}")
    lifecycle.exit_now(0 if complete else lifecycle.exit_code(ending))


def refuse_bad_flags(config: Config) -> None:
    """Refuse contradictory flags, before TensorFlow is loaded, which takes seconds."""
    evaluate.refuse_bad_flags(config)
    folder(config)


def folder(config: Config) -> Path:
    """Return the folder of the data set: --record_dir, or recorded/ in that of the run."""
    if config.record_dir:
        return Path(config.record_dir)
    if config.logdir:
        return Path(config.logdir) / "recorded"
    kept = checkpoint.resolve(config.checkpoint).resolve().parent
    if kept.name == "checkpoints":
        return kept.parent / "recorded"
    flags.refuse(
        f"--checkpoint={config.checkpoint} is not in the folder of a run: give --record_dir, the "
        f"folder for the games"
    )


def _record(config: Config, given: Sequence[str], ending: list[int]) -> bool:
    """Play and record the games; return whether all are complete."""
    from impala_mm.algorithms.interface import entry_spec  # noqa: PLC0415
    from impala_mm.environments import from_flags, seeds  # noqa: PLC0415
    from impala_mm.environments.make import make_environments  # noqa: PLC0415
    from impala_mm.environments.turns import TurnVector  # noqa: PLC0415
    from impala_mm.evaluation import games, recording  # noqa: PLC0415
    from impala_mm.policy.core import PolicyCore  # noqa: PLC0415
    from impala_mm.replay import data_set  # noqa: PLC0415
    from impala_mm.teachers.opponents import load_player  # noqa: PLC0415

    say = log.ProcessLogger("record")
    path, about = checkpoint.find(config.checkpoint or config.logdir)
    chosen = games.choose_levels(config, given, about, say)
    if len(chosen) > 1:
        flags.refuse(
            f"--mode=record plays one level: give one of {', '.join(chosen)} by --level_name"
        )
    (level,) = chosen
    policy = PolicyCore(path, about, level, **games.changed_flags(config, given))
    target, count = folder(config), config.episodes
    unroll = data_set.unroll_spec(entry_spec(policy.spec, ()), policy.config.unroll_length)
    described = recording.describe(policy.spec, unroll, policy.config, str(path))
    data = data_set.DataSetWriter(target, described)
    say(f"recording {count} games of {level} with {path} ({about.frames:,.0f} frames) in {target}")
    num_envs = min(auto.num_test_envs(config), count)
    options = from_flags.environment_options(policy.config)
    options["no_reward_steps"] = config.no_reward_steps if "no_reward_steps" in given else 0
    # Other games than those that are there already.
    seed = seeds.of_recorded(config.seed, data.next_stream)
    environments = make_environments(level, num_envs, seed, **options)
    with contextlib.closing(data), contextlib.closing(environments):
        if isinstance(environments, TurnVector):
            games.set_opponents(environments, policy.config, seed, load_player, say)
        played = games.play_games(
            policy,
            environments,
            games.each_plays(games.games_per_env(count, num_envs)),
            explore=not config.deterministic,
            idle_steps=options["no_reward_steps"],
            observer=recording.Recorder(environments.spec, unroll, data),
            meanwhile=evaluate.say_progress(say, "", count, ending),
            say=say,
        )
    kept, complete = data.about, len(played) >= count
    use = f"; --teacher_data={target} lets a student learn from them" if kept.episodes else ""
    say(f"{'' if complete else 'interrupted: '}{target} has {kept.contents}{use}")
    return complete
