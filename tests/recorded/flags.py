"""All flags as the settings define them, for a diff to show what a change adds, drops or alters.

    .venv/bin/python -m tests.recorded.flags                                     write flags.json

`test_flags.py` compares. Help texts are not recorded.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from impala_mm.config import flags
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config
from launcher.plan.settings import LauncherConfig

PATH = Path(__file__).with_name("flags.json")
_USUAL = {"choices": (), "least": -math.inf, "most": math.inf, "bare": ""}
_USUAL |= {"scope": "", "kept_by": "", "with_box": None}
_RECORDED = (
    *(
        "group",
        "choices",
        "several",
        "least",
        "most",
        "infinite",
        "own",
        "learner_only",
        "auto",
        "bare",
    ),
    *("parse", "rewrite", "scope", "kept_by", "with_box", "of_games", "remembered"),
)
_CONDITIONS = ("needs", "only_with")


def current() -> dict[str, dict[str, Any]]:
    """Return flags by name: those of the frontend, of all algorithms, and of each algorithm.

    For an algorithm also the defaults of shared flags that it changes, for games of Atari, too.
    """
    shared = _flags(Config)
    found = {"the frontend": _flags(LauncherConfig), "all algorithms": shared}
    for algorithm in BUILT_IN:
        kind = Config.of_algorithm(algorithm)
        own, defaults = _flags(kind), _defaults(kind)
        found[algorithm] = {name: own[name] for name in own.keys() - shared.keys()}
        found[f"{algorithm}, other defaults"] = _changes(_defaults(Config), defaults)
        if kind.FOR_ATARI:
            atari = _defaults(kind.suited_to("PongNoFrameskip-v4"))
            found[f"{algorithm}, other defaults for Atari"] = _changes(defaults, atari)
    found["old names"] = {name: [old.now, old.why] for name, old in Config.OLD_NAMES.items()}
    found["aliases"] = dict(Config.ALIASES)
    return found


def _flags(kind: Any) -> dict[str, Any]:
    return {f.name: _describe(f) for f in dataclasses.fields(kind)}


def _describe(f: dataclasses.Field) -> dict[str, Any]:
    """Return what a flag is, without what is usual, and without its text."""
    known = {name: getattr(flags.info(f), name) for name in _RECORDED}
    told = {name: value for name, value in known.items() if value != _USUAL.get(name, False)}
    told |= {name: True for name in ("parse", "rewrite") if told.pop(name, None) is not None}
    conditions = {name: getattr(flags.info(f), name) for name in _CONDITIONS}
    told |= {name: condition.words for name, condition in conditions.items() if condition}
    kind = f.type.__name__ if isinstance(f.type, type) else str(f.type)
    return {"default": f.default, "type": kind, **told}


def _defaults(kind: Any) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(kind)}


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: now[name] for name in before.keys() & now.keys() if before[name] != now[name]}


def as_text(found: dict[str, dict[str, Any]]) -> str:
    """Return a line for each flag."""
    blocks = []
    for group, of_group in found.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(of_group[name])}" for name in sorted(of_group)]
        blocks.append(f" {json.dumps(group)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(as_text(current()))
