"""The table of an experiment: a row for each trial, live on a terminal."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from impala_mm.config.messages import escape
from impala_mm.runtime.timing import format_duration
from launcher.experiments.file import Experiment, format_value
from launcher.experiments.trial import Trial
from launcher.follow.console import make_console

_COLOURS = {"running": "green", "starting": "yellow", "failed": "red", "queued": "dim"}
_MARGIN = 8  # lines of a terminal that are not rows


@contextlib.contextmanager
def shown(experiment: Experiment, trials: Sequence[Trial]) -> Iterator[Callable[[], None]]:
    """Show the table for the time of a `with` block; yield the function that updates it.

    What is printed meanwhile stands above it. Where there is no terminal, the messages of the
    trials say enough.
    """
    console = make_console()
    if not console.is_terminal:
        yield lambda: None
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def update() -> None:
            rows = max(console.height - _MARGIN, 4)
            live.update(picture(experiment, trials, rows), refresh=True)

        yield update


def picture(experiment: Experiment, trials: Sequence[Trial], rows: int) -> Group:
    """Return the table with at most `rows` trials: those that are running, then the best."""
    names = list(experiment.axes)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("trial", *names, "state", "frames", "return", "host", "left"):
        # Axes and host are narrower on a narrow terminal; the rest is always whole.
        grid.add_column(
            Text(escape(name), overflow="fold"),
            justify="left" if name in ("state", "host") else "right",
            no_wrap=name not in (*names, "host"),
            overflow="ellipsis",
        )
    ranked = sorted(trials, key=lambda t: (t.state not in ("running", "starting"), -_score(t)))
    for trial in sorted(ranked[:rows], key=lambda t: t.number):
        score = "" if trial.score is None else f"{trial.score:.2f}"
        values = [format_value(trial.values[n]) if n in trial.values else "" for n in names]
        state = Text(trial.state, _COLOURS.get(trial.state, ""))
        frames = f"{trial.frames:,.0f}"
        cells = [Text(escape(each), no_wrap=True) for each in (str(trial.number), *values)]
        host = Text(escape(trial.host), no_wrap=True)
        grid.add_row(*cells, state, frames, score, host, _left(trial))
    hidden = len(trials) - rows
    more = [Text(f"and {hidden} more", style="dim")] * (hidden > 0)
    return Group(grid, *more, Text(describe(experiment, trials)))


def describe(experiment: Experiment, trials: Sequence[Trial]) -> str:
    """Return a line about all trials, and the best one."""
    states = [trial.state for trial in trials]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    of = f" of {experiment.most}" if experiment.most > len(trials) else ""
    line = f"{experiment.folder}: {len(trials)}{of} trials: {', '.join(counts)}"
    scored = [trial for trial in trials if trial.score is not None]
    if scored:
        best = max(scored, key=_score)
        line += (
            f"; best: trial {best.number} with return {best.score:.2f}, {best.folder}/trial.toml"
        )
    return escape(line)


def _score(trial: Trial) -> float:
    return -float("inf") if trial.score is None else trial.score


def _left(trial: Trial) -> str:
    """Return the time that a running trial needs for the rest of its frames; empty if unknown."""
    total = trial.settings.total_environment_frames
    if trial.state != "running" or not trial.rate or not total or total == float("inf"):
        return ""
    return format_duration(max(total - trial.frames, 0) / trial.rate)
