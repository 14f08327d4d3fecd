"""The job of --mode=test: plays complete games with a trained policy and prints the results.

The options of the environment (`OPTION_FLAGS`) are those that the run recorded, unless their flags
are given. Options for training are off: a lost life does not end an episode, rewards are not
clipped, and --no_reward_steps counts only if it is given.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.records import checkpoint
from impala_mm.runtime import lifecycle, log
from impala_mm.runtime.log import Say
from impala_mm.runtime.timing import Interval

if TYPE_CHECKING:
    from impala_mm.environments.types import Environments
    from impala_mm.evaluation.games import KeepPlaying, Viewer
    from impala_mm.evaluation.results import Evaluation, Game
    from impala_mm.policy.core import PolicyCore

_LINE_SECONDS = 3.0  # seconds between progress lines


def run(config: Config, given: Sequence[str]) -> NoReturn:
    """Play the games and end the process; `given` names the flags on the command line."""
    ending: list[int] = []  # signals received
    lifecycle.remember_end_signals(ending)
    refuse_bad_flags(config)
    check_display(config)
    load_tensorflow_to_play(config, intra=0)
    from impala_mm.evaluation import video_writer  # noqa: PLC0415

    try:
        played = _Test(config, given, ending).run()
    except video_writer.VideoFailed as error:
        flags.refuse(f"--video_dir: {error}")
    lifecycle.exit_now(lifecycle.exit_code(ending) if not played else 0)


def refuse_bad_flags(config: Config) -> None:
    """Refuse contradictory flags, before TensorFlow is loaded, which takes seconds."""
    if config.job_name:
        flags.refuse(f"--mode={config.mode} is one process: leave --job_name={config.job_name} out")
    if not config.logdir and not config.checkpoint:
        flags.refuse(
            f"--mode={config.mode} plays with a run's trained policy: give the run's --logdir"
        )
    where = config.checkpoint or config.logdir
    if not (path := checkpoint.resolve(where)).exists():
        named = "checkpoint" if config.checkpoint else "logdir"
        flags.refuse(f"--{named}={checkpoint.why_missing(path)}")


def load_tensorflow_to_play(config: Config, intra: int) -> None:
    """Load TensorFlow for --actor_device; `intra`: threads per operation if no flag sets them."""
    threads = config.intra_op_threads or intra, config.inter_op_threads or 1
    lifecycle.load_tensorflow(*threads, config.actor_device)
    from impala_mm.runtime import devices  # noqa: PLC0415

    devices.select_device("actor_device", config.actor_device, 0)


class _Test:
    """A test of one checkpoint on one or several levels."""

    def __init__(self, config: Config, given: Sequence[str], ending: list[int]):
        self._config, self._given, self._ending = config, given, ending
        self._say = log.ProcessLogger("test")
        self._unwritten: list[str] = []  # why videos were not finished
        self._path, self._about = checkpoint.find(config.checkpoint or config.logdir)
        kept = self._path.resolve().parent
        own = kept.parent if kept.name == "checkpoints" else None  # the folder of its run
        self._logdir = Path(config.logdir) if config.logdir else own

    def run(self) -> bool:
        """Play all levels, print and record the results; return whether all games were played."""
        from impala_mm.evaluation import games, results  # noqa: PLC0415
        from impala_mm.policy.core import PolicyCore  # noqa: PLC0415

        frames = f"{self._about.frames:,.0f}"
        self._say(f"testing the checkpoint of {frames} frames, {self._path}")
        levels = games.choose_levels(self._config, self._given, self._about, self._say)
        changes = games.changed_flags(self._config, self._given)
        policy = PolicyCore(self._path, self._about, levels[0], **changes)
        played = []
        for level in levels:
            failed = len(self._unwritten)
            result = self._play(policy, level)
            if len(result.returns) < self._config.test_num_episodes:
                self._say_interrupted(result)
                return False
            played.append(result)
            print(results.level_table(result), flush=True)
            video = video_path(self._config, policy, level) if self._config.video_dir else None
            if len(self._unwritten) > failed:
                video = None
            if video and video.exists():
                self._say(f"video: {video}")
            self._record(result, video)
        if len(played) > 1:
            print(results.overview_table(played), flush=True)
        if self._unwritten:
            flags.refuse(f"--video_dir: {self._unwritten[0]}")
        return True

    def _play(self, policy: "PolicyCore", level: str) -> "Evaluation":
        from impala_mm.evaluation.games import evaluate_level  # noqa: PLC0415

        config, count = self._config, self._config.test_num_episodes
        return evaluate_level(
            policy,
            level,
            viewers=make_viewers(config, policy, level, self._unwritten.append),
            meanwhile=say_progress(self._say, f"{level}: ", count, self._ending),
            say=self._say,
            **how_to_play(config, self._given),
        )

    def _say_interrupted(self, result: "Evaluation") -> None:
        if not result.returns:
            self._say(f"interrupted before a game of {result.level} had ended")
            return
        self._say(
            f"interrupted after {len(result.returns)} of {self._config.test_num_episodes} games of "
            f"{result.level}, with a mean return of {result.mean:.2f}; nothing is recorded, since "
            f"these are the short games"
        )

    def _record(self, result: "Evaluation", video: Path | None) -> None:
        from impala_mm.evaluation import results  # noqa: PLC0415

        if self._logdir is None:
            self._say(f"{self._path} is not in the folder of a run: the results are not recorded")
            return
        row = results.make_row(result, "test", self._logdir, video)
        try:
            where = results.append_row(self._logdir, row)
        except OSError as error:
            self._say(f"{results.path_of(self._logdir)} cannot be written: {error.strerror}")
        else:
            self._say(f"recorded in {where}")


def how_to_play(config: Config, given: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `evaluate_level` that the flags determine; `given`: see `run`."""
    from impala_mm.teachers.opponents import load_player  # noqa: PLC0415

    return {
        "num_episodes": config.test_num_episodes,
        "num_envs": auto.num_test_envs(config),
        "deterministic": config.deterministic,
        "seed": config.seed,
        "no_reward_steps": config.no_reward_steps if "no_reward_steps" in given else None,
        "load_opponent": load_player,
    }


def say_progress(say: Say, named: str, count: int, ending: list[int]) -> "KeepPlaying":
    """Return what logs now and then how many of `count` games were played, in lines that are named.

    Playing ends once there is a signal in `ending`.
    """
    begin, line = time.monotonic(), Interval(_LINE_SECONDS)

    def meanwhile(games: Sequence["Game"], steps: int) -> bool:
        if line.due(now := time.monotonic()):
            rate = f"{steps:,} steps, {steps / (now - begin):,.0f}/s"
            say(f"{named}{len(games)} of {count} games, {rate}")
        return not ending

    return meanwhile


def check_display(config: Config) -> None:
    """Refuse --render where there is no display."""
    shown = any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if config.render and not shown:
        flags.refuse(
            "--render: this machine has no display (DISPLAY is not set); --video_dir writes a video"
        )
    if config.video_dir and not config.render:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a display


def make_viewers(
    config: Config, policy: "PolicyCore", level: str, failed: Callable[[str], None]
) -> "Callable[[Environments], Sequence[Viewer]] | None":
    """Return a function that makes the viewers of the first environment; None if there are none."""
    from impala_mm.evaluation import game_video  # noqa: PLC0415

    if not config.render and not config.video_dir:
        return None

    def made(playing: "Environments") -> "Sequence[Viewer]":
        viewers: list[Viewer] = []
        if config.render:
            viewers.append(game_video.Window(level, playing.picture_rate))
        if config.video_dir:
            name_of = game_video.action_namer(policy, level)
            path = video_path(config, policy, level)
            viewers.append(
                game_video.GameVideo(
                    path, playing.picture_rate, name_of, config.video_overlay, failed
                )
            )
        return viewers

    return made


def video_path(config: Config, policy: "PolicyCore", level: str) -> Path:
    """Return the path of a level's video, with the level's name and the policy's frames."""
    name = re.sub(r"[^\w.-]+", "-", level)
    return Path(config.video_dir) / f"{name}-{policy.about.frames:.0f}.mp4"
