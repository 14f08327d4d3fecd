"""One whole game of an agent, as a video.

record_game(impala_mm.load_policy("runs/c"), "catch", Path("catch.mp4"), overlay=True)
"""

import contextlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from impala_mm import agreement
from impala_mm.environments import Step
from impala_mm.environments.shown import Shown, open_shown
from impala_mm.overlay import overlay as drawn_below
from impala_mm.policy import Policy
from impala_mm.video import Recorder, Unrecordable

_IDLE_STEPS = (
    1000  # without reward, after which the most likely actions never end a game of Atari's
)
_MOST_STEPS = 27_000  # where nothing else ends a game: half an hour of Atari


class Recorded(NamedTuple):
    """The game that a video shows."""

    episode_return: float  # raw
    length: int  # steps


def record_game(
    policy: Policy,
    level_name: str,
    path: Path,
    deterministic: bool = False,
    overlay: bool = False,
    seed: int = 1,
) -> Recorded:
    """Plays one game and writes what it looks like to `path`; the agent sees what it always saw.

    Raises environments.BadLevel where the level draws nothing, and Unrecordable.
    """
    options = agreement.options(policy.config)
    scores = policy.spec.scores or policy.spec.emulator  # a game of Atari's
    if deterministic and scores and not options["no_reward_steps"]:
        options["no_reward_steps"] = _IDLE_STEPS
    shown = open_shown(level_name, seed, **options)
    with contextlib.closing(shown.environments), Recorder(path, shown.fps) as recorder:
        return _play(policy, shown, recorder, deterministic, overlay)


def _play(
    policy: Policy, shown: Shown, recorder: Recorder, deterministic: bool, overlay: bool
) -> Recorded:
    """To the game's end: a frame shows what an action was chosen for, the last what came of it."""
    playing = shown.environments
    step, state, action = playing.reset(), policy.initial_state(1), np.zeros(1, np.int32)
    total = 0.0
    length, over = 0, False
    while not over and length < _MOST_STEPS:
        entry = policy.entry(step.observation, step.reward, action, step.first)
        judged = policy.judge(entry, state) if overlay else None
        action, state, _ = policy.act(entry, state, explore=not deterministic)
        frame = shown.picture()
        if judged:
            chosen = int(action[0])
            value, probable = float(judged.value[0]), judged.policy[0].numpy()
            frame = drawn_below(frame, shown.actions[chosen], value, total, probable, chosen)
        recorder.add(frame)
        step = _whole(playing.step(action), playing.faults)
        total += float(step.reward[0])
        length += 1
        over = any(episode.whole_game for episode in playing.episodes())
    frame = shown.picture()
    if overlay:
        nothing = np.zeros(len(shown.actions))
        frame = drawn_below(frame, "none: the game is over", 0.0, total, nothing)
    for _ in range(max(1, round(shown.fps))):  # a second, to see how it ended
        recorder.add(frame)
    return Recorded(total, length)


def _whole(step: Step, faults: list[str]) -> Step:
    if step.fault[0]:
        raise Unrecordable(f"the game broke: {faults[-1]}")
    return step
