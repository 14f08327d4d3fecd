"""The records that a run's processes write, one JSON object per line."""

import json

from supervising import until


def read_rows(folder, name="metrics.jsonl"):
    """Return the records of all complete lines; an empty list if the file does not exist."""
    path = folder / name
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def until_row(folder, is_right, seconds=120):
    """Wait for a row of metrics for which `is_right` holds, and return the first one."""
    return until(lambda: next((row for row in read_rows(folder) if is_right(row)), None), seconds)
