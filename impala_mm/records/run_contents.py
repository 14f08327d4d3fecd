"""The contents of a run's folder besides its metrics: checkpoints, evaluations, videos.

The report page and the dashboard read it; the dashboard passes a function of its own that reads a
file. A folder may lack any of these files, or contain files that an earlier version wrote; what is
missing is left out.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from impala_mm.records.json_lines import parse_lines
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
