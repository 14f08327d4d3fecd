"""The records that a run's processes write, one JSON object per line."""

import json


def read_rows(folder, name="metrics.jsonl"):
    """Return the records of all complete lines; an empty list if the file does not exist."""
    path = folder / name
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]
