"""The job of --job_name=evaluator: tests each new checkpoint of a run."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.jobs import evaluate
from impala_mm.runtime import heartbeat, lifecycle, log
from impala_mm.runtime.timing import format_duration

_LOOK_SECONDS = 2.0  # seconds between two looks for a new checkpoint
_SAY_SECONDS = 300.0  # seconds between two lines that say that it is waiting


def run(config: Config, given: Sequence[str]) -> NoReturn:
    """Test checkpoints until a signal ends the process; `given`: see `evaluate.run`.

    After SIGUSR1, which says that the run has ended, the last checkpoint is tested before that.
    """
    ending: list[int] = []  # signals received
    stop = threading.Event()

    def end() -> None:
        if not stop.is_set():
            stop.set()

    lifecycle.remember_end_signals(ending, end)
    refuse_bad_flags(config)
    evaluate.check_display(config)
    evaluate.load_tensorflow_to_play(config, intra=1)  # leaves the other cores to the run
    _follow(config, given, stop, lambda: ending != [signal.SIGUSR1])
    lifecycle.exit_now(lifecycle.exit_code(ending))


def refuse_bad_flags(config: Config) -> None:
    """Refuse contradictory flags, before TensorFlow is loaded."""
    if not config.logdir:
        flags.refuse("--job_name=evaluator follows the checkpoints of a run: give its --logdir")
    if config.checkpoint:
        flags.refuse("--checkpoint is for --mode=test: an evaluator tests each new checkpoint")


def _follow(
    config: Config, given: Sequence[str], stop: threading.Event, at_once: Callable[[], bool]
) -> None:
    """Test checkpoints until `stop`; unless it is to be `at_once`, test the last one then."""
    from impala_mm.evaluation import games  # noqa: PLC0415
    from impala_mm.evaluation.checkpoint_tester import CheckpointTester, Film  # noqa: PLC0415

    say, alive = log.ProcessLogger("evaluator"), heartbeat.of_this_process()

    def keep_playing(games: Any, steps: int) -> bool:
        alive.beat()
        return not stop.is_set() or (not at_once() and evaluator.plays_newest())

    def film(policy: Any, level: str) -> Film:
        path = evaluate.video_path(config, policy, level)
        with contextlib.suppress(OSError):  # there is none of an earlier test, or no such folder
            path.unlink()
        return Film(path, evaluate.make_viewers(config, policy, level, say))

    evaluator = CheckpointTester(
        Path(config.logdir),
        lambda about: games.choose_levels(config, given, about, say),
        games.changed_flags(config, given),
        meanwhile=keep_playing,
        say=say,
        film=film if config.video_dir else None,
        **evaluate.how_to_play(config, given),
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
            say(f"waiting for {_awaited(evaluator.newest, config.logdir, now - since)}")
            said = now
        stop.wait(_LOOK_SECONDS)
    if not at_once():
        evaluator.test_newest()
        if at_once():
            say("ended before the last checkpoint was tested")


def _awaited(newest: Any, logdir: str, seconds: float) -> str:
    which = f"checkpoint after that of {newest.frames:,.0f} frames" if newest else "new checkpoint"
    since = f", since {format_duration(seconds)}" if seconds >= _SAY_SECONDS else ""
    return f"a {which} in {logdir}/checkpoints{since}"
