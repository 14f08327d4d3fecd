"""The settings of a run as a table, changed ones first: for TensorBoard and for reports."""

import contextlib
import dataclasses
from typing import Any, NamedTuple

from impala_mm.config import flags
from impala_mm.config.algorithm_settings import BadAlgorithm
from impala_mm.config.settings import Config


class SettingRow(NamedTuple):
    """One setting, with its values as they are written on a command line."""

    name: str
    value: str
    default: str
    changed: bool  # whether the value differs from the default


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
            _format_value(value),
            _format_value(defaults.get(name, "")),
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


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
