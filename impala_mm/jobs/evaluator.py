"""--job_name=evaluator, from its flags to its exit code: tests each new checkpoint of a run."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.jobs import evaluate
from impala_mm.runtime import heartbeat, lifecycle, log

_LOOK_SECONDS = 2.0  # between two looks for a new checkpoint
_SAY_SECONDS = 300.0  # between two lines while there is none


def run(config: Config, given: Sequence[str]) -> NoReturn:
    """Tests checkpoints until it is told to end; `given` as for `evaluate`."""
    ending: list[int] = []  # the signals that asked for an end
    stop = threading.Event()

    def end(number: int, _: Any) -> None:
        ending.append(number)
        if not stop.is_set():
            stop.set()

    lifecycle.handle_end_signals(end)
    refuse_bad_flags(config)
    evaluate.load_tensorflow_to_play(config, intra=1)  # beside a run
    from impala_mm.environments import types  # noqa: PLC0415
    from impala_mm.evaluation.games import Unplayable  # noqa: PLC0415

    try:
        _follow(config, given, stop)
    except (types.BadLevel, Unplayable) as error:
        flags.refuse(str(error))
    lifecycle.exit_now(lifecycle.exit_code(ending))


def refuse_bad_flags(config: Config) -> None:
    """Before TensorFlow is loaded."""
    if not config.logdir:
        flags.refuse("--job_name=evaluator follows the checkpoints of a run: give its --logdir")
    for name in ("checkpoint", "render", "video_dir"):
        if getattr(config, name):
            flags.refuse(f"--{name} is for --mode=test: an evaluator tests each new checkpoint")


def _follow(config: Config, given: Sequence[str], stop: threading.Event) -> None:
    from impala_mm.evaluation import levels  # noqa: PLC0415
    from impala_mm.evaluation.checkpoint_tester import CheckpointTester  # noqa: PLC0415

    say, alive = log.ProcessLogger("evaluator"), heartbeat.of_this_process()

    def goes_on(games: Any, steps: int) -> bool:
        alive.beat()
        return not stop.is_set()

    evaluator = CheckpointTester(
        Path(config.logdir),
        lambda about: levels.choose_levels(config, given, about, say),
        levels.changed_flags(config, given),
        meanwhile=goes_on,
        say=say,
        num_episodes=config.test_num_episodes,
        num_envs=auto.num_test_envs(config),
        deterministic=config.deterministic,
        seed=config.seed,
        no_reward_steps=config.no_reward_steps if "no_reward_steps" in given else None,
    )
    since, said = time.monotonic(), float("-inf")
    while not stop.is_set():
        alive.frames = evaluator.frames
        alive.beat()
        if evaluator.test_newest():
            since, said = time.monotonic(), float("-inf")
            continue
        now = time.monotonic()
        if now - said >= _SAY_SECONDS and not stop.is_set():
            say(f"waits for {_awaited(evaluator.newest, config.logdir)}{_waited(now - since)}")
            said = now
        stop.wait(_LOOK_SECONDS)


def _awaited(newest: Any, logdir: str) -> str:
    which = f"newer than that of {newest.frames:,.0f} frames" if newest else "that is new"
    return f"a checkpoint {which} in {logdir}/checkpoints"


def _waited(seconds: float) -> str:
    return f", for {seconds / 60:.0f} min now" if seconds >= _SAY_SECONDS else ""
