"""The contents of a run's folder as plots, reports and the dashboard read them.

Its rows of metrics and the curves drawn of them, checkpoints, evaluations, videos, and its settings
as a table. The dashboard passes a function of its own that reads a file. A folder may lack any of
these files, or contain files that an earlier version wrote; what is missing is left out.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from impala_mm.config import flags
from impala_mm.config.algorithm_settings import BadAlgorithm
from impala_mm.config.settings import Config
from impala_mm.runtime.safe_files import from_json

Record = dict[str, Any]
ReadText = Callable[[Path], str]  # raises OSError


def _read_text(path: Path) -> str:
    return path.read_text(errors="replace")


def read_checkpoints(folder: Path, read_text: ReadText = _read_text) -> list[Record]:
    """Read the about.json of each checkpoint, oldest first, and add its `path` and `best`."""
    found = []
    for path in sorted((folder / "checkpoints").glob("[0-9]*/about.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):  # one that was cut off
            found.append(from_json(read_text(path)) | {"path": path.parent.name})
    known = [r["episode_return"] for r in found if is_number(r.get("episode_return"))]
    best = [r for r in found if known and r.get("episode_return") == max(known)]
    for record in found:
        record["best"] = record is best[-1] if best else False  # the newest, as `best_of` says
    return found


def read_records(path: Path, read_text: ReadText = _read_text) -> list[Record]:
    """Read a file with one JSON record per line; return [] if it does not exist."""
    try:
        return parse_lines(read_text(path).splitlines())
    except OSError:
        return []


def game_values(evaluation: Record, key: str = "returns") -> list[float]:
    """Return the returns or the lengths of the games in a record of evaluations.jsonl."""
    values = evaluation.get(key)
    return [v for v in values if is_number(v)] if isinstance(values, list) else []


def list_videos(folder: Path, read_text: ReadText = _read_text) -> list[Path]:
    """List the videos of a run: those in its own videos/, then those recorded elsewhere."""
    found = sorted((folder.resolve() / "videos").glob("*.mp4"))
    for record in read_records(folder / "evaluations.jsonl", read_text):
        video = folder.resolve() / str(record.get("video", ""))
        if video.suffix == ".mp4" and os.path.isfile(video):
            found.append(video.resolve())
    return list(dict.fromkeys(found))


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


POPULATION = "population.jsonl"  # in the folder of an experiment: who took from whom
_MOST_BEGINS = 50  # places in a damaged line at which a row may begin: a row has fewer objects


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file; lines without an object are left out. Raises OSError."""
    return parse_lines(path.read_text(errors="replace").splitlines())


def parse_lines(lines: list[str]) -> list[dict[str, Any]]:
    """Return the objects of lines of such a file.

    A process that is killed may leave half a line, and the next one appends to it: then the object
    at the line's end is returned, which is the largest one that begins within the line.
    """
    found = []
    for line in lines:
        for begin in itertools.islice(re.finditer("{", line), _MOST_BEGINS):
            with contextlib.suppress(ValueError):
                found.append(from_json(line[begin.start() :]))
                break
    return found


def find_current(frames: Sequence[float], seconds: Sequence[float]) -> list[bool]:
    """Return for each row of metrics whether no later row has fewer frames or seconds.

    A run that was killed resumes from its last checkpoint: its next rows replace some before.
    """
    least, found = [math.inf, math.inf], list[bool]()
    for counts in zip(reversed(frames), reversed(seconds), strict=True):
        found.append(all(count <= most for count, most in zip(counts, least, strict=True)))
        least = list(map(min, counts, least))
    return found[::-1]


def drop_replaced(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of metrics that count, see `find_current`."""
    rows = [row for row in rows if {"frames", "seconds"} <= row.keys()]
    frames, seconds = ([row[key] for row in rows] for key in ("frames", "seconds"))
    return list(itertools.compress(rows, find_current(frames, seconds)))


class Panel(NamedTuple):
    """A quantity that is drawn."""

    name: str  # its name in `impala-mm results plot --only`
    key: str  # its key in metrics.jsonl
    title: str
    unit: str
    share: bool = False  # whether it ranges from 0 to 1


PANELS = (
    Panel("return", "episode_return", "Mean return", "last 100 games"),
    Panel("elo", "elo", "Rating of the policy", "Elo"),
    Panel("speed", "frames_per_second", "Throughput", "frames/s"),
    Panel("lag", "policy_lag", "Policy lag", "updates"),
    Panel("queue", "queue_fill", "Queue fill level", "share", share=True),
    Panel("wait", "wait_share", "Learners' waiting time", "share of time", share=True),
    Panel("loss", "loss_per_step/total", "Loss, total", "per step"),
    Panel("policy", "loss_per_step/policy", "Loss, policy", "per step"),
    Panel("baseline", "loss_per_step/baseline", "Loss, baseline", "per step"),
    Panel("entropy", "loss_per_step/entropy", "Loss, entropy", "nats per step"),
    Panel("offpolicy", "off_policyness", "Off-policyness", "nats per action"),
    Panel("policyentropy", "entropy", "Entropy of the policy", "nats"),
    Panel("temperature", "temperature", "Temperature", ""),
    Panel("value", "q/value", "Value of actions", "reward"),
    Panel("error", "q/error", "Error of actions' values", ""),
    Panel("random", "epsilon", "Random actions", "share", share=True),
    Panel("norm", "grad_norm", "Gradient norm", ""),
    Panel("rate", "learning_rate", "Learning rate", ""),
)


class SettingRow(NamedTuple):
    """One setting, with its values as they are written on a command line."""

    name: str
    value: str
    default: str
    changed: bool  # whether the value differs from the default


# Groups of flags that do not change what is learnt.
_OTHER_GROUPS = ("Dashboard", "Test", "Rehearsal")


def other_settings() -> set[str]:
    """Return the settings in which runs of one experiment may differ, such as folder and seed."""
    return {"seed", "save_checkpoint_secs", "replay_spill"} | {
        name
        for name, known in flags.infos(Config).items()
        if known.scope or known.group in _OTHER_GROUPS or (known.own and known.group == "Run")
    }


def default_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the default of each setting that a run of the same algorithm has."""
    config = Config
    with contextlib.suppress(BadAlgorithm):  # its module is not on this machine
        config = Config.of_algorithm(str(settings.get("algorithm", Config.algorithm)))
    return {f.name: f.default for f in dataclasses.fields(config)}


def list_settings(settings: dict[str, Any]) -> list[SettingRow]:
    """Return a row for each setting, those that differ from their defaults first."""
    defaults = default_settings(settings)
    of_commands = {name for name, known in flags.infos(Config).items() if known.scope == "command"}
    rows = [
        SettingRow(
            name,
            format_value(value),
            format_value(defaults.get(name, "")),
            value != defaults.get(name),
        )
        for name, value in settings.items()
        if name not in of_commands
    ]
    return sorted(rows, key=lambda row: not row.changed)


def render_markdown(settings: dict[str, Any]) -> str:
    """Return a table in Markdown; changed settings come first and are bold."""
    lines = ["| flag | value | default |", "|---|---|---|"]
    for row in list_settings(settings):
        bold = "**" if row.changed else ""
        cells = f"--{row.name}", row.value, row.default
        escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        lines.append("| " + " | ".join(f"{bold}{c}{bold}" if c else "" for c in escaped) + " |")
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """Return a setting's value as a command line has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
