"""A run's learning curve as text for the terminal, beside the return of a random policy."""

import signal
import sys
from pathlib import Path

import numpy as np

from impala_mm.config import flags
from impala_mm.records.run_folder import recorded_settings
from impala_mm.runtime import lifecycle
from sandbox.results.runs import read_returns

lifecycle.import_tensorflow()  # the modules below need only TensorFlow's types

from impala_mm.environments import types  # noqa: E402
from impala_mm.environments.make import level_spec, make_environments  # noqa: E402

_WIDTH, _HEIGHT = 64, 12
_ASCII = str.maketrans("•┤│└─", "*||+-")  # for terminals that cannot show these characters
_COPIES, _GAMES = 10, 10  # environments of a random policy, and games of each
_MOST_STEPS = 20_000  # of each; games that then have not ended may never end


def draw_text_chart(frames: list[float], values: list[float]) -> str:
    """Draw the values over the frames as lines of text."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    cells = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    sampled_frames = np.linspace(frames[0], frames[-1], _WIDTH)
    for x, value in enumerate(np.interp(sampled_frames, frames, values)):
        y = round((value - low) / span * (_HEIGHT - 1))
        cells[_HEIGHT - 1 - y][x] = "•"
    labels = [f"{high:9.2f} ┤", *["          │"] * (_HEIGHT - 2), f"{low:9.2f} ┤"]
    lines = [label + "".join(row) for label, row in zip(labels, cells, strict=True)]
    scale = f"{frames[0]:<,.0f}".ljust(_WIDTH - 18) + f"{frames[-1]:>18,.0f}"
    return "\n".join([*lines, " " * 10 + "└" + "─" * _WIDTH, " " * 11 + scale, " " * 11 + "frames"])


def random_policy_return(level_name: str, options: dict) -> float:
    """Return the mean return of complete games that a random policy plays.

    Each environment plays as many, so that short games do not count for more; NaN if they do not
    end.
    """
    known = level_spec(level_name, **options).scores
    if known:  # Atari's scores are published, and 100 games would take minutes
        return known[0]
    environments = make_environments(level_name, _COPIES, seed=0, **options)
    random, sample = np.random.default_rng(0), environments.spec.actions.sample
    returns: list[list[float]] = [[] for _ in range(_COPIES)]
    step = environments.reset()
    for _ in range(_MOST_STEPS):
        step = environments.step(sample(len(step.first), step.mask, random))
        for episode in environments.episodes():
            if episode.whole_game and len(returns[episode.environment]) < _GAMES:
                returns[episode.environment].append(episode.episode_return)
        if all(len(each) == _GAMES for each in returns):
            break
    environments.close()
    return float(np.mean(returns)) if all(len(each) == _GAMES for each in returns) else np.nan


def show(logdir: Path | None) -> None:
    """Print the chart, the result and suggestions for what to do next."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `| head` ends it quietly
    if logdir is None:
        logdirs = sorted(Path("runs").glob("*/metrics.jsonl"), key=lambda p: p.stat().st_mtime)
        if not logdirs:
            flags.refuse("runs/ contains no run: name a run's folder, its --logdir")
        logdir = logdirs[-1].parent
    elif not (logdir / "metrics.jsonl").exists():
        flags.refuse(f"{logdir} is not the folder of a run: it has no metrics.jsonl")
    known, settings = read_returns(logdir), recorded_settings(logdir)
    if not settings:
        flags.refuse(f"{logdir} has no settings.json that can be read, which names the level")
    if not known:
        sys.exit(f"error: no game of the run in {logdir} has ended yet")
    level = settings["level_name"]
    print(f"\n{level}: mean return of the last 100 games")
    chart = draw_text_chart(
        [row["frames"] for row in known], [row["episode_return"] for row in known]
    )
    print(chart if sys.stdout.encoding.lower().startswith("utf") else chart.translate(_ASCII))
    options = {name: settings[name] for name in types.OPTION_FLAGS if name in settings}
    result = known[-1]["episode_return"]
    random = np.mean([random_policy_return(one.strip(), options) for one in level.split(",")])
    chance = "not known, its games do not end" if np.isnan(random) else f"{random:.2f}"
    print(f"\nmean return {result:.2f}; random: {chance}   ({logdir})")
    print("\nNext:")
    programs, here = Path(sys.executable).parent, Path.cwd()
    place = programs.relative_to(here) if programs.is_relative_to(here) else programs
    print(f"  {place}/impala-mm --level_name=catch        another environment")
    print(f"  {place}/impala-mm --help                    the settings")
    print(f"  {place}/tensorboard --logdir={logdir}    this run in a browser, with more metrics")
