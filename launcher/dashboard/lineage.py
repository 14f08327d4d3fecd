"""Reads who took from whom in a population, from the file of `launcher.experiments.population`."""

from pathlib import Path
from typing import Any

from impala_mm.records.run_contents import POPULATION, read_records
from impala_mm.runtime.safe_files import text_reader

_KEYS = {"member", "from", "frames", "values", "before"}  # of a row of an exchange


def read(folder: Path) -> dict[str, Any] | None:
    """Return a population's name, number of members, frames and exchanges; None if it has none."""
    rows = read_records(folder / POPULATION, text_reader(folder))
    compared = [row for row in rows if row.get("event") == "compared"]
    exchanges = [row for row in rows if row.get("event") == "took" and row.keys() >= _KEYS]
    if not compared:
        return None
    return {
        "name": folder.resolve().name,
        "members": len(compared[0]["scores"]),
        "frames": max(row["frames"] for row in (*compared, *exchanges)),
        "exchanges": exchanges,
    }
