"""The flags of other trainers, and what stands for them here: the answer to an unknown flag.

`peers/` has a table for each trainer that this one grew out of, with all of its flags, and one for
the names of CleanRL, Stable-Baselines3, RLlib and Sample Factory. A row has the name there (or
several, or `name=value`; of gin's parameters with the class where another one has the same name),
the default there, our flags, and where ours is not the same, the difference. A row without our
flags says why there are none.
"""

import ast
import csv
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

TABLES = Path(__file__).with_name("peers")


class Row(NamedTuple):
    """The counterpart of a flag of another trainer."""

    there: str
    default: str
    here: str  # our flags, as a message names them; empty if there are none
    difference: str  # from the flag there, or why we have none; usually empty

    @property
    def answer(self) -> str:
        """The end of a message that there is no such flag."""
        known = f"; here it is {self.here}" if self.here else "; it has no counterpart here"
        return known + (f": {self.difference}" if self.difference else "")


@functools.cache
def table(trainer: str) -> tuple[Row, ...]:
    """Return the rows of a trainer's table."""
    with (TABLES / f"{trainer}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Row(**row) for row in csv.DictReader(file))


@functools.cache
def _rows() -> dict[str, Row]:
    """Return the rows of all tables by the names there, those of the gin parameters included."""
    rows: dict[str, Row] = {}
    for path in sorted(TABLES.glob("*.csv")):
        for row in table(path.stem):
            for name in row.there.split():
                rows.setdefault(_plain(name), row)
                rows.setdefault(_plain(name.rpartition(".")[2]), row)
    return rows


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def here(name: str, value: str = "") -> str:
    """Return what stands for a flag of another trainer, as the end of a message; empty if unknown.

    `value` is what was given to it.
    """
    rows, name = _rows(), _plain(name)
    if name == "replay_parameters" and (mix := _replay_mix(value)):
        return f"; here it is --replay={mix}"
    if name == "gin_bindings":
        parameter = _plain(value.partition("=")[0].strip())
        bound = rows.get(parameter) or rows.get(parameter.rpartition(".")[2])
        if bound:
            return bound.answer
    found = rows.get(f"{name}={_plain(value)}") or rows.get(name)
    return found.answer if found else ""


def other_meaning(name: str) -> str:
    """Return what the flag of this name of another trainer is here, if ours is something else."""
    row = _rows().get(name)
    return row.here if row and not re.search(rf"--{name}\b", row.here) else ""


def of_flag(flag: str) -> str:
    """Return what others call this flag, for a search in the help."""
    told = re.compile(rf"--{flag}\b")
    rows = {row.there: None for row in _rows().values() if told.search(row.here)}
    return " ".join(rows)


_KINDS = {"queue": "queue", "standard": "uniform"}
_SAMPLED = {"elite_sampling": "elite", "attentive_sampling": "attentive"}
_DISTANCES = {"cos_dist": "cosine", "kl_div": "kl"}  # ln_norm is the norm of order p


def _replay_mix(text: str) -> str:
    """Return the --replay of elite_buffer_vtrace's --replay_parameters; empty if it is none."""
    try:
        return ",".join(_replay_part(part) for part in ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError):
        return ""


def _replay_part(part: dict[str, Any]) -> str:
    share, capacity = f"{part['sample_ratio']:g}", f"{part['capacity']}"
    if part["type"] != "custom":
        kind = _KINDS[part["type"]]
        return f"{kind}:{share}" + (f":{capacity}" if kind != "queue" else "")
    draws = part.get("sample_strategy", "")  # without it, all have the same probability
    kind = _SAMPLED.get(draws, "elite")
    options = {
        "distance": _DISTANCES.get(part["dist_function"], f"l{part.get('p', 2)}"),
        "lambda": part.get("lambda_batch_multiplier", 1) if draws else 1,
        "anneal": part.get("alfa_annealing_factor", 1),
    }
    if kind == "elite":
        options["strategy"] = part.get("elite_sampling_strategy", "strategy3")[-1]
        if part.get("insert_strategy"):
            options |= {"insertion": "elite", "compared": part.get("elite_batch_size", 20)}
    return ":".join([kind, share, capacity, *(f"{n}={v}" for n, v in options.items())])
