"""The places of variables in checkpoints of earlier versions: under numbers, or former names.

Before variables had names, those of a kind had numbers, such as `carried/3`, in an order that
`_NUMBERED` keeps. Where an attribute that leads to a variable is renamed, an entry of `_RENAMED`
lets earlier checkpoints be read.
"""

from collections.abc import Sequence

from impala_mm.config.algorithm_settings import BUILT_IN

# Former beginning of names -> that of today, in whole parts, such as "old/net" -> "new/torso".
_RENAMED: dict[str, str] = {}

# The order of a built-in algorithm's numbered variables, by the longest of these beginnings that
# today's name has. Those of one beginning, and those of none, are in the order of their group.
_NUMBERED = {
    "trained": (
        "network",
        "policy",
        "critics",
        "online",
        "policy_head",
        "baseline_head",
        "features",
    ),
    "acting": ("epsilon", "unit", "network", "normaliser", "plays_randomly"),
    "weights": ("log_temperature", "target", "targets", "unit", "normaliser"),
    "carried": (
        *("optimizer", "optimizers", "unit", "entropy_cost", "updates", "features", "target"),
        *("temperature", "features/distillation", "features/guidance"),
    ),
}


def places(keys: Sequence[str], stored: Sequence[str], algorithm: str) -> dict[str, str]:
    """Return where a checkpoint holds what has these keys, by key, as far as it does.

    `stored` are its own keys, and `algorithm` is its run's. Variables are found by their names,
    whatever kind they had.
    """
    by_name = {_today(key.partition("/")[2]): key for key in stored if not _is_numbered(key)}
    held: dict[str, str] = {}
    for kind in dict.fromkeys(key.partition("/")[0] for key in keys):
        of_kind = [key for key in keys if key.startswith(f"{kind}/")]
        there = [key for key in stored if key.startswith(f"{kind}/")]
        if there and all(map(_is_numbered, there)):
            order = _NUMBERED.get(kind, ()) if algorithm in BUILT_IN else ()
            held |= {key: f"{kind}/{i}" for i, key in enumerate(_in_order(order, of_kind))}
            continue
        for key in of_kind:
            place = key if _is_numbered(key) else by_name.get(key.partition("/")[2])
            if place is not None:
                held[key] = place
    return {key: place for key, place in held.items() if place in set(stored)}


def _is_numbered(key: str) -> bool:
    return key.rpartition("/")[2].isdecimal() and key.count("/") == 1


def _in_order(order: Sequence[str], keys: list[str]) -> list[str]:
    """Return the keys of a kind in the order in which earlier versions numbered them."""

    def number(key: str) -> int:
        name = key.partition("/")[2] + "/"
        fitting = [beginning for beginning in order if name.startswith(f"{beginning}/")]
        return order.index(max(fitting, key=len)) if fitting else len(order)

    return sorted(keys, key=number)


def _today(name: str) -> str:
    """Return the name of today of a variable that has had another one."""
    for former, today in _RENAMED.items():
        if f"{name}/".startswith(f"{former}/"):
            name = today + name[len(former) :]
        name = name.replace(f"/{former}/", f"/{today}/")  # a slot has its parameter's name
    return name
